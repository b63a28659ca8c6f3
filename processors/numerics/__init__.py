"""Arithmetic shared by processors."""
