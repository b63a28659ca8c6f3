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
_library.define("attention(Tensor query, Tensor keys, Tensor values, Tensor mask, float scale) -> Tensor")


def float_gemm(x: Tensor, weight: Tensor) -> Tensor:
    """Product of ``[rows, in]`` and ``[out, in]`` of one dtype, ``[rows, out]``."""
    return x.new_empty(x.shape[0], weight.shape[0])


def int8_gemm(x: Tensor, quantized: Tensor, scale: Tensor) -> Tensor:
    """Product of ``[rows, in]`` and int8 ``[out, in]``, times scales ``[out]``: ``[rows, out]``."""
    return x.new_empty(x.shape[0], quantized.shape[0])


def int4_gemm(x: Tensor, packed: Tensor, levels: Tensor) -> Tensor:
    """Product of ``[rows, in]`` and an int4 layer's tensors, ``[rows, outputs of all blocks]``."""
    return x.new_empty(x.shape[0], levels.shape[1])


def attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """
    Attention of any number of columns.

    Args:
        query: ``[batch, width, heads, key_dim]``, contiguous.

        keys: ``[batch, groups, slots, key_dim]``, contiguous in the last two dimensions; the heads of a
            group share its keys.

        values: ``[batch, groups, slots, value_dim]``, likewise.

        mask: Added to the scores, ``[batch, heads, width, slots]``, contiguous in the last dimension.
            :func:`~...kv_cache.masks.hidden` hides a slot; each column must see at least one.

        scale: Factor of the scores.

    Returns:
        ``[batch, width, heads, value_dim]``.
    """
    return query.new_empty(*query.shape[:3], values.shape[3])


SHAPES: dict[Any, Callable[..., Tensor]] = {
    torch.ops.decodekit.float_gemm.default: float_gemm,
    torch.ops.decodekit.int8_gemm.default: int8_gemm,
    torch.ops.decodekit.int4_gemm.default: int4_gemm,
    torch.ops.decodekit.attention.default: attention,
}
"""The function that makes a result of each operation, without computing it."""

for _operation, _function in SHAPES.items():
    torch.library.register_fake(_operation, _function, lib=_library)
