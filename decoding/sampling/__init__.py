"""From logits to token ids: the pipeline of processors and sampler, the samplers, and their noise."""
