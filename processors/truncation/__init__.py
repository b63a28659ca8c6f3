"""Processors that truncate the distribution."""
