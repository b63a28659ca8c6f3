"""
Replacement forwards for models that derive biases, windows or scales from the number of cache slots.

Most Hugging Face models take a mask and positions as inputs. A few compute an ALiBi bias, a window or the
scale of their queries themselves, from the number of slots. In the decoder's copy of such a model, these
modules get a second ``forward``, used with a position-addressed cache. With any other cache, or none, the
stock forward runs, which the decoder is compared with.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

from torch import nn

from ..kv_cache.positioned_cache import PositionedCache
from .alibi import adapt_bloom, adapt_falcon, adapt_mpt
from .attention_temperature import adapt_llama4
from .gpt_neo import adapt_gpt_neo

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Forward = Callable[..., Any]
"""A module and the arguments of its ``forward``, the cache as ``cache``, to the result of ``forward``."""

_CACHE_ARGUMENTS = ("cache", "past_key_values", "layer_past")
"""Names of the cache in the stock forwards, the first since transformers 5.24."""

# By defining Python module, so that remote code under a known class name is not changed.
_ADAPTERS: dict[str, Callable[[Any], dict[nn.Module, Forward]]] = {
    "transformers.models.bloom.modeling_bloom": adapt_bloom,
    "transformers.models.falcon.modeling_falcon": adapt_falcon,
    "transformers.models.gpt_neo.modeling_gpt_neo": adapt_gpt_neo,
    "transformers.models.llama4.modeling_llama4": adapt_llama4,
    "transformers.models.mpt.modeling_mpt": adapt_mpt,
}


def adapt(model: "PreTrainedModel") -> None:
    """Change *model*, a decoder's own copy, so that it runs over a position-addressed cache."""
    body = model.base_model
    adapter = _ADAPTERS.get(type(body).__module__)
    if adapter is not None:
        for module, forward in adapter(body).items():
            # A bound method, which a deepcopy of the module rebinds to the copy.
            module.forward = MethodType(_by_position(forward), module)


def _by_position(forward: Forward) -> Forward:
    """*forward* over a position-addressed cache, the stock forward over any other."""

    @functools.wraps(forward)
    def either(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for name in _CACHE_ARGUMENTS:
            if isinstance(kwargs.get(name), PositionedCache):
                return forward(module, *args, cache=kwargs.pop(name), **kwargs)
        return type(module).forward(module, *args, **kwargs)

    return either
