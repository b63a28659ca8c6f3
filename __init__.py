"""
decodekit: the parts around a decoder that is compiled for fixed shapes.

Everything that varies in generation (which tokens may follow, how one is chosen, when to stop,
who sees it, whether a draft runs ahead) stays outside the compiled program, in independent
parts around one call: ``logits = decoder.forward(ids, cache_pos)``.
"""

__version__ = "0.1.0"
