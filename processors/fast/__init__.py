"""
The host's short cuts of processors, one file per stage.

Importing this package registers them (:mod:`decodekit.decoding.sampling.short_cuts`); the sampling
pipeline does at its first use. Without it every stage is called on the whole vocabulary.
"""

from . import min_p, no_repeat_ngram, repetition_penalty, temperature, top_k, top_p

__all__ = ["min_p", "no_repeat_ngram", "repetition_penalty", "temperature", "top_k", "top_p"]
