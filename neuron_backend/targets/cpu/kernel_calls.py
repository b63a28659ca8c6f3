"""Calls of the C functions in csrc/exports.cpp, from the tensors of the operations that they compute."""

import abc
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from . import kernel_operations


@attrs.frozen
class Ids:
    """The ids of a program's columns."""


Argument = int | float | Tensor | None | tuple[int, ...] | Ids
"""``int64_t``, ``double``, a pointer to numbers or null, a pointer to ``int64_t``, or to a program's ids."""


class KernelCalls(abc.ABC):
    """
    The operations in :mod:`~.kernel_operations` as calls of C functions.

    Inputs are contiguous and not checked.
    """

    @abc.abstractmethod
    def call(self, function: str, *arguments: Argument) -> None:
        """Call a C function, or record the call."""

    def ids(self, rows: int) -> Argument:
        """The ids of the *rows* of an operation, if they are columns of a program; None otherwise."""
        return None

    def _rows(self, x: Tensor) -> tuple[int, Argument]:
        """The number of rows of *x*, and their :meth:`ids`."""
        return x.shape[0], self.ids(x.shape[0])

    def operations(self) -> dict[Any, Callable[..., Any]]:
        """The method of each operation."""
        return {
            torch.ops.decodekit.float_gemm.default: self.float_gemm,
            torch.ops.decodekit.int8_gemm.default: self.int8_gemm,
            torch.ops.decodekit.int4_gemm.default: self.int4_gemm,
            torch.ops.decodekit.column_gemm.default: self.column_gemm,
            torch.ops.decodekit.expert_gemm.default: self.expert_gemm,
            torch.ops.decodekit.top_k.default: self.top_k,
            torch.ops.decodekit.attention.default: self.attention,
        }

    def float_gemm(self, x: Tensor, weight: Tensor) -> Tensor:
        """As :func:`~.kernel_operations.float_gemm`."""
        y = kernel_operations.float_gemm(x, weight)
        self.call("decodekit_float_gemm", *self._rows(x), x, weight, y, *weight.shape)
        return y

    def int8_gemm(self, x: Tensor, quantized: Tensor, scale: Tensor) -> Tensor:
        """As :func:`~.kernel_operations.int8_gemm`."""
        y = kernel_operations.int8_gemm(x, quantized, scale)
        self.call("decodekit_int8_gemm", *self._rows(x), x, quantized, scale, y, len(scale), x.shape[1])
        return y

    def int4_gemm(self, x: Tensor, packed: Tensor, levels: Tensor) -> Tensor:
        """As :func:`~.kernel_operations.int4_gemm`."""
        # The last dimension of packed is the block.
        y = kernel_operations.int4_gemm(x, packed, levels)
        self.call("decodekit_int4_gemm", *self._rows(x), x, packed, levels, y, *packed.shape[:2])
        return y

    def column_gemm(self, x: Tensor, weight: Tensor) -> Tensor:
        """As :func:`~.kernel_operations.column_gemm`."""
        y = kernel_operations.column_gemm(x, weight)
        self.call("decodekit_column_gemm", *self._rows(x), x, weight, y, *weight.shape)
        return y

    def expert_gemm(self, x: Tensor, experts: Tensor, weights: Tensor, by_columns: bool, each: int) -> Tensor:
        """As :func:`~.kernel_operations.expert_gemm`."""
        most, out, inputs = weights.mT.shape if by_columns else weights.shape
        y = kernel_operations.expert_gemm(x, experts, weights, by_columns, each)
        ids = self.ids(x.shape[0] // each) if each else None
        counts = (most, out, inputs, int(by_columns))
        self.call("decodekit_expert_gemm", x.shape[0], ids, each, x, experts, weights, y, *counts)
        return y

    def top_k(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As :func:`~.kernel_operations.top_k`."""
        rows, size = x.shape
        values, indices = kernel_operations.top_k(x, k)
        self.call("decodekit_top_k", rows, x, values, indices, size, k)
        return values, indices

    def attention(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        sinks: Tensor | None,
        scale: float,
        cap: float,
    ) -> Tensor:
        """As :func:`~.kernel_operations.attention`."""
        batch, width, heads, key_dim = query.shape
        groups, slots, value_dim = values.shape[1:]
        y = kernel_operations.attention(query, keys, values, mask, sinks, scale, cap)
        strided = [part for tensor in (keys, values, mask) for part in (tensor, tensor.stride()[:3])]
        counts = (batch, width, heads, groups, slots, key_dim, value_dim)
        ids, scoring = self.ids(batch * width), (sinks, float(scale), float(cap))
        self.call("decodekit_attention", ids, query, *strided, y, *counts, *scoring)
        return y
