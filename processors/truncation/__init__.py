"""Processors that cut the tail of a distribution."""
