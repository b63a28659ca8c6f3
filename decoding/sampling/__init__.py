"""From logits to token ids: the sampling pipeline, the samplers, and their noise."""
