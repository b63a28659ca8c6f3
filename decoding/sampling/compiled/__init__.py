"""Sampling from a few tokens, compiled."""
