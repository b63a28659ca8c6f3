"""
Position-addressed forward of GPT-Neo, whose layers alternate full and sliding-window attention.

The stock layers build their own causal mask from the number of slots. Here each layer uses only the mask of
its type (:class:`~..kv_cache.masks.MaskPlan`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from ..kv_cache.positioned_cache import PositionedCache


def adapt_gpt_neo(body: Any) -> dict[nn.Module, Callable[..., Any]]:
    """Replacement forwards for a ``GPTNeoModel``."""
    return {body: _gpt_neo, **{block.attn.attention: _attention for block in body.h}}


def _gpt_neo(
    body: Any,
    input_ids: Tensor,
    *,
    attention_mask: Tensor | dict[str, Tensor],
    position_ids: Tensor,
    cache: PositionedCache,
    **_: Any,
) -> BaseModelOutputWithPast:
    states = body.wte(input_ids) + body.wpe(position_ids)
    for block in body.h:
        kind = block.attn.attention_type
        mask = attention_mask if isinstance(attention_mask, Tensor) else attention_mask[kind]
        states = block(states, layer_past=cache, attention_mask=mask, use_cache=True)[0]
    return BaseModelOutputWithPast(last_hidden_state=body.ln_f(states))


def _attention(
    attention: Any,
    hidden_states: Tensor,
    *,
    attention_mask: Tensor,
    cache: PositionedCache,
    **_: Any,
) -> tuple[Tensor, None]:
    def heads(projection: nn.Module) -> Tensor:
        split = (*hidden_states.shape[:2], attention.num_heads, attention.head_dim)
        states: Tensor = projection(hidden_states)
        return states.view(split).transpose(1, 2)

    query = heads(attention.q_proj)
    key, value = cache.update(heads(attention.k_proj), heads(attention.v_proj), attention.layer_id)
    # Unscaled scores in float32, as in the stock model.
    scores = query.to(torch.float32) @ key.to(torch.float32).transpose(-1, -2) + attention_mask
    weights = scores.softmax(dim=-1).to(value.dtype)
    return attention.out_proj((weights @ value).transpose(1, 2).flatten(2)), None
