"""Arithmetic that processors share."""
