"""
From a Hugging Face causal LM to a decoder of fixed shapes.

:func:`compile_decoder` takes a model and gives a :class:`StaticDecoder`, which serves every part
of the toolkit through one call, ``forward(ids, cache_pos)``.
"""

from .compilation import compile_decoder
from .loading import load_decoder
from .static_decoder import StaticDecoder
from .unsupported import UnsupportedArchitecture

__all__ = ["StaticDecoder", "UnsupportedArchitecture", "compile_decoder", "load_decoder"]
