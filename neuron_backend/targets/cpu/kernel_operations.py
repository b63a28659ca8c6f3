"""
Graph operations of the kernels for products and attention.

Only graphs that are compiled for a CPU call them. Here they have shapes and no implementation;
programs are linked with that of :class:`~.kernel_library.Library`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_library: Any = torch.library.Library("decodekit", "DEF")  # type: ignore[no-untyped-call]
_library.define("float_gemm(Tensor x, Tensor weight) -> Tensor")
_library.define("int8_gemm(Tensor x, Tensor quantized, Tensor scale) -> Tensor")
_library.define("int4_gemm(Tensor x, Tensor packed, Tensor levels) -> Tensor")
_library.define("column_gemm(Tensor x, Tensor weight) -> Tensor")
_library.define("expert_gemm(Tensor x, Tensor experts, Tensor weights, bool by_columns, int each) -> Tensor")
_library.define("top_k(Tensor x, int k) -> (Tensor, Tensor)")
_library.define(
    "attention(Tensor query, Tensor keys, Tensor values, Tensor mask, Tensor? sinks, float scale, float cap)"
    " -> Tensor"
)


def float_gemm(x: Tensor, weight: Tensor) -> Tensor:
    """Product of ``[rows, in]`` and ``[out, in]`` of one dtype, ``[rows, out]``."""
    return x.new_empty(x.shape[0], weight.shape[0])


def int8_gemm(x: Tensor, quantized: Tensor, scale: Tensor) -> Tensor:
    """
    Product of ``[rows, in]`` and the tensors of an int8 layer in blocks, ``[rows, out]``.

    Args:
        x: The rows.

        quantized: In the layout of :mod:`~...quantization.int8_blocks`.

        scale: ``[out]``.
    """
    return x.new_empty(x.shape[0], scale.shape[0])


def int4_gemm(x: Tensor, packed: Tensor, levels: Tensor) -> Tensor:
    """Product of ``[rows, in]`` and an int4 layer's tensors, ``[rows, outputs of all blocks]``."""
    return x.new_empty(x.shape[0], levels.shape[1])


def column_gemm(x: Tensor, weight: Tensor) -> Tensor:
    """Product of ``[rows, in]`` and ``[in, out]`` of one dtype, ``[rows, out]``."""
    return x.new_empty(x.shape[0], weight.shape[1])


def expert_gemm(x: Tensor, experts: Tensor, weights: Tensor, by_columns: bool, each: int) -> Tensor:
    """
    Products of rows by the weights of an expert each.

    Args:
        x: ``[rows, in]``.

        experts: Number of each row's expert, ``[rows]`` int64.

        weights: ``[experts, out, in]``.

        by_columns: Whether *weights* are ``[experts, in, out]`` instead.

        each: How many rows each column of a step has, one after the other; 0 if they are not in that order.

    Returns:
        ``[rows, out]``.
    """
    return x.new_empty(x.shape[0], weights.shape[2 if by_columns else 1])


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """
    The *k* largest of float32 ``[rows, size]`` in descending order, and their places.

    They are those of ``torch.topk``, in ties too.
    """
    return x.new_empty(x.shape[0], k), x.new_empty(x.shape[0], k, dtype=torch.int64)


def attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    sinks: Tensor | None,
    scale: float,
    cap: float,
) -> Tensor:
    """
    Attention of any number of columns.

    Args:
        query: ``[batch, width, heads, key_dim]``, contiguous.

        keys: ``[batch, groups, slots, key_dim]``, contiguous in the last two dimensions; the heads of a
            group share its keys.

        values: ``[batch, groups, slots, value_dim]``, likewise.

        mask: Added to the scores, ``[batch, heads, width, slots]``, contiguous in the last dimension.
            :func:`~...kv_cache.masks.hidden` hides a slot; each column must see at least one.

        sinks: Of each head, a score that takes part in the softmax and has no value, ``[heads]`` (Xiao et
            al., 2023, `arXiv:2309.17453 <https://arxiv.org/abs/2309.17453>`_). None: none.

        scale: Factor of the scores.

        cap: Scaled scores *x* become ``cap * tanh(x / cap)`` before the mask is added, as in Gemma 2
            (`arXiv:2408.00118 <https://arxiv.org/abs/2408.00118>`_, section 2). 0: they do not.

    Returns:
        ``[batch, width, heads, value_dim]``.
    """
    return query.new_empty(*query.shape[:3], values.shape[3])


def has_rows(states: Tensor) -> bool:
    """Whether :func:`attention` can read *states*, keys or values: slot follows slot in memory."""
    return states.stride()[2:] == (states.shape[3], 1)


SHAPES: dict[Any, Callable[..., Any]] = {
    torch.ops.decodekit.float_gemm.default: float_gemm,
    torch.ops.decodekit.int8_gemm.default: int8_gemm,
    torch.ops.decodekit.int4_gemm.default: int4_gemm,
    torch.ops.decodekit.column_gemm.default: column_gemm,
    torch.ops.decodekit.expert_gemm.default: expert_gemm,
    torch.ops.decodekit.top_k.default: top_k,
    torch.ops.decodekit.attention.default: attention,
}
"""The function that makes the results of each operation, without computing them."""

for _operation, _function in SHAPES.items():
    torch.library.register_fake(_operation, _function, lib=_library)
