"""
Products and attention of few rows, as operations that a graph calls.

Only graphs that are to be compiled for a CPU call them: outside of one they have shapes and no
code. :class:`~.kernel_library.Library` has that, for programs to be linked with.
"""

from typing import Any

import torch
from torch import Tensor

_library: Any = torch.library.Library("decodekit", "DEF")  # type: ignore[no-untyped-call]
_library.define("float_rows(Tensor x, Tensor weight) -> Tensor")
_library.define("int8_rows(Tensor x, Tensor quantized, Tensor scale) -> Tensor")
_library.define("int4_rows(Tensor x, Tensor packed, Tensor levels) -> Tensor")
_library.define("attention(Tensor query, Tensor keys, Tensor values, Tensor mask, float scale) -> Tensor")


def float_rows(x: Tensor, weight: Tensor) -> Tensor:
    """``[rows, in]`` and ``[out, in]`` of one dtype to ``[rows, out]``."""
    return x.new_empty(x.shape[0], weight.shape[0])


def int8_rows(x: Tensor, quantized: Tensor, scale: Tensor) -> Tensor:
    """Multiply ``[rows, in]`` by int8 ``[out, in]`` with scales ``[out]``: ``[rows, out]``."""
    return x.new_empty(x.shape[0], quantized.shape[0])


def int4_rows(x: Tensor, packed: Tensor, levels: Tensor) -> Tensor:
    """``[rows, in]`` and an :class:`~....quantization.int4_linear.Int4Linear` to ``[rows, outputs of all blocks]``."""
    return x.new_empty(x.shape[0], levels.shape[1])


def attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """
    Attention of a few columns.

    Args:
        query: ``[batch, width, heads, key_dim]``, contiguous.

        keys: ``[batch, groups, slots, key_dim]``, of which the last two dimensions are contiguous; as many
            heads as there are for a group share its keys.

        values: ``[batch, groups, slots, value_dim]``, likewise.

        mask: Added to scores, ``[batch, heads, width, slots]``, of which the last dimension is contiguous.
            The lowest number of its dtype hides a slot; each column sees one at least.

        scale: Of scores.

    Returns:
        ``[batch, width, heads, value_dim]``.
    """
    return query.new_empty(*query.shape[:3], values.shape[3])


for _shapes in (float_rows, int8_rows, int4_rows, attention):
    torch.library.register_fake(f"decodekit::{_shapes.__name__}", _shapes, lib=_library)
