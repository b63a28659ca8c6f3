"""
Position-addressed forwards of ALiBi models: BLOOM, Falcon, MPT.

Press et al., 2022, `Train Short, Test Long: Attention with Linear Biases Enables Input Length
Extrapolation <https://arxiv.org/abs/2108.12409>`_: a head of slope *m* adds *-m* times the
distance between query and key. A softmax is invariant to adding a constant, so *m* times the position of the
key is equivalent. The stock models derive positions by counting the slots of a 2-D mask; here the
position of each slot is known.
"""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from ..kv_cache.masks import hidden
from ..kv_cache.positioned_cache import PositionedCache

_SLOPES = "alibi_slopes"
_TABLE = "alibi_table"


def adapt_bloom(body: Any) -> dict[nn.Module, Callable[..., Any]]:
    """Replacement forwards for a ``BloomModel``."""
    two = torch.ones(1, 2, dtype=torch.int64)
    _keep(body, _SLOPES, body.build_alibi_tensor(two, body.num_heads, torch.float32)[:, 0, 1])
    return {body: _bloom}


def adapt_falcon(body: Any) -> dict[nn.Module, Callable[..., Any]]:
    """Replacement forwards for a ``FalconModel``; none if it uses RoPE."""
    if not body.use_alibi:
        return {}
    # The stock model multiplies in bfloat16. Precomputed, since compilers may skip intermediate rounding.
    known = torch.ones(1, body.config.max_position_embeddings, dtype=torch.int64)
    build = sys.modules[type(body).__module__].build_alibi_tensor
    _keep(body, _TABLE, build(known, body.num_heads, torch.float32)[:, 0])
    return {body: _falcon}


def adapt_mpt(body: Any) -> dict[nn.Module, Callable[..., Any]]:
    """Replacement forwards for an ``MptModel``."""
    # The last of two slots is at distance 0, the first at 1.
    _keep(body, _SLOPES, -body.build_mpt_alibi_tensor(body.num_heads, 2)[:, 0, 0])
    return {body: _mpt, **{block.attn: _mpt_attention for block in body.blocks}}


def _keep(body: nn.Module, name: str, bias: Tensor) -> None:
    body.register_buffer(name, bias, persistent=False)


def _linear_bias(slopes: Tensor, positions: Tensor) -> Tensor:
    """Slopes ``[heads]`` and positions ``[batch or 1, slots]`` to ``[batch or 1, heads, 1, slots]``."""
    return slopes[:, None, None] * positions[:, None, None]


def _bloom(
    body: Any, input_ids: Tensor, *, attention_mask: Tensor, cache: PositionedCache, **_: Any
) -> BaseModelOutputWithPast:
    states = body.word_embeddings_layernorm(body.word_embeddings(input_ids))
    bias = _linear_bias(body.alibi_slopes, cache.positions).to(states.dtype)
    # Its layers take rows and heads as one dimension.
    bias = bias.expand(len(input_ids), -1, -1, -1).flatten(0, 1)
    for block in body.h:
        states = block(states, alibi=bias, attention_mask=attention_mask, layer_past=cache, use_cache=True)[0]
    return BaseModelOutputWithPast(last_hidden_state=body.ln_f(states))


def _falcon(
    body: Any, input_ids: Tensor, *, attention_mask: Tensor, cache: PositionedCache, **_: Any
) -> BaseModelOutputWithPast:
    states = body.word_embeddings(input_ids)
    bias = body.alibi_table[:, cache.positions].transpose(0, 1)[:, :, None].to(states.dtype)
    scale = math.sqrt(body.config.hidden_size // body.num_heads)
    mask = (bias / scale).masked_fill(attention_mask < -1, hidden(states.dtype))
    bias = bias.expand(len(input_ids), -1, -1, -1)
    for block in body.h:
        states = block(states, alibi=bias, attention_mask=mask, layer_past=cache, use_cache=True)[0]
    return BaseModelOutputWithPast(last_hidden_state=body.ln_f(states))


def _mpt(
    body: Any, input_ids: Tensor, *, attention_mask: Tensor, cache: PositionedCache, **_: Any
) -> BaseModelOutputWithPast:
    states = body.wte(input_ids)
    bias = _linear_bias(body.alibi_slopes, cache.positions)
    for block in body.blocks:
        states = block(states, position_bias=bias, attention_mask=attention_mask < 0, layer_past=cache)[0]
    return BaseModelOutputWithPast(last_hidden_state=body.norm_f(states))


def _mpt_attention(
    attention: Any,
    hidden_states: Tensor,
    *,
    position_bias: Tensor,
    attention_mask: Tensor,
    cache: PositionedCache,
) -> tuple[Tensor, None]:
    # The stock forward takes one bias for all rows; in a tree, rows differ.
    fused = attention.Wqkv(hidden_states)
    if attention.clip_qkv:
        fused = fused.clamp(min=-attention.clip_qkv, max=attention.clip_qkv)
    heads = fused.unflatten(-1, (3, attention.n_heads, attention.head_dim)).transpose(1, 3)
    query, key, value = heads.unbind(2)
    key, value = cache.update(key, value, attention.layer_idx)
    scores = query @ key.transpose(-1, -2) * attention.softmax_scale + position_bias
    scores = scores.masked_fill(attention_mask, hidden(query.dtype))
    weights = scores.float().softmax(dim=-1).to(value.dtype)
    return attention.out_proj((weights @ value).transpose(1, 2).flatten(2)), None
