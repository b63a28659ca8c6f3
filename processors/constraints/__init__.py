"""Processors that forbid or force tokens."""
