"""
decodekit: the parts around a decoder that is compiled for fixed shapes.

Everything that varies in generation (which tokens may follow, how one is chosen, when to stop,
who sees it, whether a draft runs ahead) stays outside the compiled program, in independent
parts around one call: ``logits = decoder.forward(ids, cache_pos)``.
"""

from .decoding.pretrained_loader import register_loader

__version__ = "0.1.0"

register_loader(f"{__name__}.pretrained")
