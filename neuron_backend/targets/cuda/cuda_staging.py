"""
Staging memory: tensors at fixed addresses on the host and on a device, moved by one copy.

A recorded program reads and writes the addresses that it was recorded with. A forward takes a few small
tensors, and a copy to a device costs microseconds whatever its size, so they are laid out contiguously,
in memory that all programs of a decoder share.
"""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

_ALIGNMENT = 256
"""Bytes; alignment of CUDA allocations."""


@attrs.frozen
class TensorSpec:
    """Shape and dtype of a tensor without memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorSpec":
        """Shape and dtype of *tensor*."""
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def size(self) -> int:
        """Bytes, rounded up to the alignment."""
        size = self.dtype.itemsize
        for extent in self.shape:
            size *= extent
        return -(-size // _ALIGNMENT) * _ALIGNMENT


def size_of(specs: Sequence[TensorSpec]) -> int:
    """Bytes of tensors laid out contiguously."""
    return sum(spec.size for spec in specs)


def tensors_in(block: Tensor, specs: Sequence[TensorSpec]) -> tuple[Tensor, ...]:
    """Views of *block*, uint8, as tensors of *specs*, laid out contiguously."""
    tensors, start = [], 0
    for spec in specs:
        piece = block[start : start + spec.size].view(spec.dtype)
        count = torch.Size(spec.shape).numel()
        tensors.append(piece[:count].view(spec.shape))
        start += spec.size
    return tuple(tensors)


@attrs.frozen(eq=False)
class Staging:
    """The same bytes on the host and on a device."""

    host: Tensor
    """``[size]`` uint8."""

    device: Tensor
    """``[size]`` uint8."""

    def up(self, size: int) -> None:
        """Start copying the first *size* bytes to the device."""
        self.device[:size].copy_(self.host[:size], non_blocking=True)

    def down(self, size: int) -> None:
        """Start copying the first *size* bytes to the host, which must wait before it reads them."""
        self.host[:size].copy_(self.device[:size], non_blocking=True)
