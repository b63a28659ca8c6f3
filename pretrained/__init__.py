"""
Generators from a model's files: decoder, tokenizer, generation config and end of sequence in one call.

This room is above the others and may use all of them. :meth:`~decodekit.decoding.Generator.from_pretrained`
finds it by the name that the package registers.
"""

from typing import TYPE_CHECKING

from ..decoding.lazy_names import lazy_names

if TYPE_CHECKING:
    from .custom_generate import decodekit_generate as decodekit_generate
    from .from_files import generator_arguments as generator_arguments
    from .smollm2 import ModelUnavailable as ModelUnavailable, fetch_smollm2 as fetch_smollm2
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
