"""The name of the cache in transformers' ``generate``."""

import inspect

from transformers import GenerationMixin

CACHE = (
    "cache"
    if "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    else "past_key_values"
)
"""``cache`` since transformers 5.24, ``past_key_values`` before."""
