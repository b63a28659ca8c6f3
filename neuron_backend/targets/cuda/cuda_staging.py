"""
Tensors of fixed places, on the host and on a device, that one copy moves.

A recorded program reads and writes where it did when it was recorded. What a forward is given is a
handful of small tensors, and a copy to a device costs some microseconds whatever its size: so they
lie one behind the other, in memory that all programs of a decoder share.
"""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

_ALIGNMENT = 256
"""Bytes: where CUDA begins what it allocates."""


@attrs.frozen
class TensorSpec:
    """Shape and dtype of a tensor that has yet to get memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorSpec":
        """Those of *tensor*."""
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def size(self) -> int:
        """Bytes, with what is left free behind them."""
        size = self.dtype.itemsize
        for extent in self.shape:
            size *= extent
        return -(-size // _ALIGNMENT) * _ALIGNMENT


def size_of(places: Sequence[TensorSpec]) -> int:
    """Bytes of tensors one behind the other."""
    return sum(place.size for place in places)


def tensors_in(block: Tensor, places: Sequence[TensorSpec]) -> tuple[Tensor, ...]:
    """Tensors of *places* one behind the other in the bytes of *block*, from its beginning."""
    tensors, start = [], 0
    for place in places:
        piece = block[start : start + place.size].view(place.dtype)
        count = torch.Size(place.shape).numel()
        tensors.append(piece[:count].view(place.shape))
        start += place.size
    return tuple(tensors)


@attrs.frozen(eq=False)
class Staging:
    """The same bytes on the host and on a device."""

    host: Tensor
    """``[size]`` uint8."""

    device: Tensor
    """``[size]`` uint8."""

    def up(self, size: int) -> None:
        """Copy the first *size* bytes to the device; the host goes on."""
        self.device[:size].copy_(self.host[:size], non_blocking=True)

    def down(self, size: int) -> None:
        """Copy the first *size* bytes to the host; it has them when it has waited."""
        self.host[:size].copy_(self.device[:size], non_blocking=True)
