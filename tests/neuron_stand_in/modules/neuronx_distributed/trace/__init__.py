"""Tracing and compilation."""
