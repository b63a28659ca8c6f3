"""
Models that have to be told where they are.

Most Hugging Face models take a mask and positions ready-made. A few make something of their own
from how many slots there are: a bias by distance, a window. On the copy of such a model that a
decoder adopts, the modules in question get a second ``forward``, which runs where the cache is
addressed by position. With any other cache, or none, the model remains the stock one, and that is
what it is compared with.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

from torch import nn

from ..kv_cache.buffers import PositionedCache
from .alibi import adapt_bloom, adapt_falcon, adapt_mpt
from .gpt_neo import adapt_gpt_neo

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Forward = Callable[..., Any]
"""A module and the arguments of its ``forward`` to what that returns."""

# By the module that defines the body, so that code from elsewhere under a known name stays as it is.
_ADAPTERS: dict[str, Callable[[Any], dict[nn.Module, Forward]]] = {
    "transformers.models.bloom.modeling_bloom": adapt_bloom,
    "transformers.models.falcon.modeling_falcon": adapt_falcon,
    "transformers.models.gpt_neo.modeling_gpt_neo": adapt_gpt_neo,
    "transformers.models.mpt.modeling_mpt": adapt_mpt,
}


def adapt(model: "PreTrainedModel") -> None:
    """Change *model*, a decoder's own copy, so that it can be run over a cache by position."""
    body = model.base_model
    adapter = _ADAPTERS.get(type(body).__module__)
    if adapter is not None:
        for module, forward in adapter(body).items():
            # A bound method: a copy of the module gets one that is bound to the copy.
            module.forward = MethodType(_by_position(forward), module)


def _by_position(forward: Forward) -> Forward:
    """*forward* over a cache by position, the stock one over any other."""

    @functools.wraps(forward)
    def either(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("past_key_values", kwargs.get("layer_past"))
        chosen = forward if isinstance(cache, PositionedCache) else type(module).forward
        return chosen(module, *args, **kwargs)

    return either
