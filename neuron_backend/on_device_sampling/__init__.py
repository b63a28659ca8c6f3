"""Sampling within the forward: a chain of processors and a sampler as part of a decoder's programs."""
