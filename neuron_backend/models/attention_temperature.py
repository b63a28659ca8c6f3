"""
Attention temperature by position: Llama 4's layers without RoPE.

Nakanishi, 2025, `Scalable-Softmax Is Superior for Attention <https://arxiv.org/abs/2501.19399>`_: in a long
context, queries are scaled up. Llama 4 scales those at position *p* by
``log1p(floor((p + 1) / floor_scale)) * attn_scale + 1``. The stock layer counts columns from the length of
the cache, one number for all rows (transformers 5.24, modeling_llama4.py, ``Llama4TextAttention.forward``);
here the position of each column is known.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from ..kv_cache.positioned_cache import PositionedCache
from .unsupported import UnsupportedArchitecture

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def adapt_llama4(body: nn.Module) -> dict[nn.Module, Callable[..., Any]]:
    """Replacement forwards for a ``Llama4TextModel``; none if its queries are not scaled by position."""
    return {module: _attention for module in body.modules() if _is_tuned(module)}


def check_attention_temperature(model: "PreTrainedModel", max_length: int) -> None:
    """
    Refuse a stock *model* whose cache has no position for each row, if it would scale queries.

    Raises:
        UnsupportedArchitecture: Queries within *max_length* positions are scaled.
    """
    tuned: list[Any] = [module for module in model.modules() if _is_tuned(module)]
    for module in tuned:
        if max_length >= module.floor_scale:
            raise UnsupportedArchitecture(
                type(model).__name__,
                f"it scales queries from position {module.floor_scale - 1} on, by the length of the cache: "
                f"'max_length' must be < {module.floor_scale}: got {max_length}",
            )


def _is_tuned(module: Any) -> bool:
    return bool(getattr(module, "attn_temperature_tuning", False)) and not getattr(module, "use_rope", True)


def _attention(
    attention: Any,
    hidden_states: Tensor,
    position_embeddings: Tensor,
    attention_mask: Tensor,
    *,
    cache: PositionedCache,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    def heads(projection: nn.Module) -> Tensor:
        states: Tensor = projection(hidden_states)
        return states.view(*states.shape[:-1], -1, attention.head_dim)

    query = heads(attention.q_proj)
    scales = _scales(cache.column_positions, attention.floor_scale, attention.attn_scale)
    query = (query * scales[..., None, None]).to(query.dtype).transpose(1, 2)
    key, value = heads(attention.k_proj).transpose(1, 2), heads(attention.v_proj).transpose(1, 2)
    key, value = cache.update(key, value, attention.layer_idx)
    output, weights = _kernel(attention)(
        attention, query, key, value, attention_mask, dropout=0.0, scaling=attention.scaling, **options
    )
    return attention.o_proj(output.flatten(2)), weights


def _scales(positions: Tensor, floor_scale: int, attn_scale: float) -> Tensor:
    """Scales of queries at *positions*, float32, of the same shape."""
    return torch.log1p(torch.floor((positions.float() + 1.0) / floor_scale)) * attn_scale + 1.0


def _kernel(attention: Any) -> Callable[..., Any]:
    default = sys.modules[type(attention).__module__].eager_attention_forward
    known = AttentionInterface()  # type: ignore[no-untyped-call]
    found: Callable[..., Any] = known.get(attention.config._attn_implementation, default)
    return found
