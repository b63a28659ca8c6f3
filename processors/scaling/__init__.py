"""Processors that rescale or normalise all logits."""
