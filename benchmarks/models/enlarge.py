"""
Enlarging a small model to a real shape while it keeps computing the same function.

Speed has to be measured at a real shape; acceptance needs a draft and a target trained on the same text.
The bundled pair is too small for the first: :func:`enlarge` gives its target the shape of a real model, every
matrix multiplied in full, with the small model's logits up to rounding:

- The width is padded with zeros. Their root mean square is smaller, so the norms' weights are scaled by
  sqrt(small / large), and their epsilon by small / large.
- A larger head dimension rotates pairs at more frequencies; the small one's are every second (third, ...) of
  them. The dimensions between are zero in the queries. Queries are scaled by sqrt(large / small), since
  attention divides by the root of the head dimension.
- A key-value head serves only query heads that shared one before. Where it cannot serve all of those, it is
  duplicated.
- Layers between the small model's own add nothing: their output projections are zero.

Weights that are multiplied by one of these zeros are random, so dense kernels gain nothing. Only where the
zeros are weights themselves (output projections, the padded part of the embedding) could a sparse kernel
use them.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

SMOLLM2_135M = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 18,
    "num_key_value_heads": 6,
    "head_dim": 32,
    "intermediate_size": 1536,
}
"""
SmolLM2-135M's shape, but 18/6 heads of 32 dimensions instead of 9/3 of 64: the bundled target has 10 query
heads, each with its own softmax, which 9 heads cannot represent. Matrix sizes and the bytes of keys and
values are the original's.
"""


@torch.no_grad()
def enlarge(
    model: LlamaForCausalLM,
    *,
    hidden_size: int,
    num_hidden_layers: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    intermediate_size: int,
    head_dim: int,
    max_position_embeddings: int | None = None,
    seed: int = 0,
) -> LlamaForCausalLM:
    """
    A model of the given shape with the logits of *model*.

    Args:
        model: A Llama without biases and with default rotary frequencies. Not modified.

        hidden_size: At least the model's own, as every size.

        num_hidden_layers: The model's own layers are spread evenly among them.

        num_attention_heads: A multiple of the key-value heads.

        num_key_value_heads: Enough for each of the model's own to serve its query heads.

        intermediate_size: Width of the feed-forward layers.

        head_dim: A multiple of the model's own.

        max_position_embeddings: None: the model's own. Rotary positions have no upper limit, so it may be
            larger; text beyond is as good as that of *model*.

        seed: Seed of the weights without influence.

    Raises:
        ValueError: *model* does not fit the shape.
    """
    # Any: to type checkers most sizes of a config may be None.
    small: Any = model.config
    config = copy.deepcopy(small)
    config.hidden_size, config.intermediate_size = hidden_size, intermediate_size
    config.num_attention_heads, config.num_key_value_heads = num_attention_heads, num_key_value_heads
    config.num_hidden_layers, config.head_dim = num_hidden_layers, head_dim
    config.max_position_embeddings = max_position_embeddings or small.max_position_embeddings
    config.rms_norm_eps = small.rms_norm_eps * small.hidden_size / hidden_size
    _check_fit(small, config)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        large: LlamaForCausalLM = LlamaForCausalLM._from_config(  # type: ignore[no-untyped-call]
            config, dtype=model.dtype
        )
    large.train(False)
    for layer in large.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    for i, layer in enumerate(model.model.layers):
        place = i * num_hidden_layers // small.num_hidden_layers
        _place_layer(layer, large.model.layers[place], small, config)
    _place_norm(model.model.norm.weight, large.model.norm.weight)
    large.model.embed_tokens.weight.zero_()
    _place(model.model.embed_tokens.weight, large.model.embed_tokens.weight)
    if not config.tie_word_embeddings:
        _place(model.lm_head.weight, large.lm_head.weight)
    return large


def _check_fit(small: Any, large: Any) -> None:
    if small.attention_bias or small.mlp_bias or small.rope_parameters["rope_type"] != "default":
        raise ValueError(f"'model' must have no biases and default rotation: got {small}")
    for size in ("hidden_size", "num_hidden_layers", "intermediate_size"):
        if getattr(large, size) < getattr(small, size):
            raise ValueError(f"{size!r} must be >= {getattr(small, size)}: got {getattr(large, size)}")
    if large.hidden_size % large.num_attention_heads:
        # transformers saves no other shape.
        raise ValueError(
            f"'hidden_size' must be a multiple of {large.num_attention_heads}: got {large.hidden_size}"
        )
    if large.head_dim % small.head_dim:
        raise ValueError(f"'head_dim' must be a multiple of {small.head_dim}: got {large.head_dim}")
    if large.num_attention_heads % large.num_key_value_heads:
        raise ValueError(
            f"'num_attention_heads' must be a multiple of {large.num_key_value_heads}: "
            f"got {large.num_attention_heads}"
        )
    needed = 1 + max(key_value for _, key_value in _heads(small, large))
    if large.num_key_value_heads < needed:
        raise ValueError(f"'num_key_value_heads' must be >= {needed}: got {large.num_key_value_heads}")


def _heads(small: Any, large: Any) -> list[tuple[int, int]]:
    """For each query head of *small* its query head and its key-value head in *large*."""
    old = small.num_attention_heads // small.num_key_value_heads
    new = large.num_attention_heads // large.num_key_value_heads
    copies = math.ceil(old / new)
    places = []
    for head in range(small.num_attention_heads):
        group, member = divmod(head, old)
        key_value = group * copies + member // new
        places.append((key_value * new + member % new, key_value))
    return places


def _place_layer(old: LlamaDecoderLayer, new: LlamaDecoderLayer, small: Any, large: Any) -> None:
    _place_norm(old.input_layernorm.weight, new.input_layernorm.weight)
    _place_norm(old.post_attention_layernorm.weight, new.post_attention_layernorm.weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        _place(getattr(old.mlp, name).weight, getattr(new.mlp, name).weight)

    step = large.head_dim // small.head_dim
    # A pair is half a head apart, so every step-th frequency is every step-th dimension.
    dims = torch.arange(0, large.head_dim, step)
    group = small.num_attention_heads // small.num_key_value_heads
    before, after = old.self_attn, new.self_attn
    for head, (query, key_value) in enumerate(_heads(small, large)):
        own = slice(head * small.head_dim, (head + 1) * small.head_dim)
        shared = slice(head // group * small.head_dim, (head // group + 1) * small.head_dim)
        queries, keys = query * large.head_dim + dims, key_value * large.head_dim + dims
        after.q_proj.weight[query * large.head_dim : (query + 1) * large.head_dim] = 0
        after.q_proj.weight[queries, : small.hidden_size] = before.q_proj.weight[own] * math.sqrt(step)
        after.k_proj.weight[keys, : small.hidden_size] = before.k_proj.weight[shared]
        after.v_proj.weight[keys, : small.hidden_size] = before.v_proj.weight[shared]
        after.o_proj.weight[: small.hidden_size, queries] = before.o_proj.weight[:, own]


def _place(old: Tensor, new: Tensor) -> None:
    """Copy the matrix *old* into the top left corner of *new*."""
    new[: old.shape[0], : old.shape[1]] = old


def _place_norm(old: Tensor, new: Tensor) -> None:
    new[: len(old)] = old * math.sqrt(len(old) / len(new))
