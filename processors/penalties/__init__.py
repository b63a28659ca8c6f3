"""Processors that add to or scale the logits of some tokens."""
