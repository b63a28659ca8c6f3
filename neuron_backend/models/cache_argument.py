"""The cache of a model's forward: ``cache`` since transformers 5.24, ``past_key_values`` before."""

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def cache_argument(model: "PreTrainedModel") -> str:
    """The argument of *model*'s forward that takes the cache; remote code keeps the earlier name."""
    kind: Any = type(model)
    return _argument_of(kind)


@functools.cache
def _argument_of(kind: Any) -> str:
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"


def returned_cache(output: Any) -> Any:
    """The cache that a forward returned with its logits; None if there is none."""
    cache = getattr(output, "cache", None)
    return getattr(output, "past_key_values", None) if cache is None else cache
