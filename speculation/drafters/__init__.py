"""Drafters: what proposes tokens ahead of the target."""
