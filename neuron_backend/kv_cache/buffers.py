"""
Buffers of the position-addressed KV cache.

Each slot has an address; position *p* of a row is at address *p*. Negative addresses are reserved: -1 is the
spare slot, which padding is written to, and -2, -3, ... are scratch slots, one per column of the widest tree.
Reserved slots come first, so that they and the leading positions are one contiguous slice of each buffer:
what a forward of a short span attends to. The last slot is never attended to, so that a compiler with a
dynamic span can rely on the slice being smaller than the buffer.
"""

from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from .geometry import Geometry

SPARE = -1
"""Address of the slot that padding is written to."""


@attrs.frozen(eq=False)
class CacheBuffers:
    """Keys and values of every layer, ``[batch, heads, slots, head_dim]``, slots in address order."""

    keys: list[Tensor]
    values: list[Tensor]
    overflow: Tensor
    """1 for each slot whose token overflowed in some layer, else 0: ``[batch, 1, slots, 1]``."""

    reserved: int
    """Slots before position 0: the spare slot, and scratch slots if trees are scored."""

    @classmethod
    def zeros(cls, geometry: Geometry, batch_size: int, max_length: int, scratch: int = 0) -> "CacheBuffers":
        """
        An empty cache for *geometry*, with *scratch* additional slots.

        Raises:
            ValueError: There is no memory for it.
        """

        def buffer(heads: int, dim: int) -> Tensor:
            try:
                # Not inference tensors, in any mode of the caller: later forwards write to them.
                with torch.inference_mode(False):
                    return torch.zeros(batch_size, heads, slots, dim, dtype=geometry.cache_dtype)
            except (RuntimeError, TypeError) as error:
                raise ValueError(
                    f"the cache must fit into memory: got {batch_size} rows, {slots} slots, {heads} heads "
                    f"and {dim} numbers in each of {len(geometry.layers)} layers"
                ) from error

        reserved = scratch + 1
        slots = reserved + max_length + 1
        return cls(
            keys=[buffer(layer.key_heads, layer.key_dim) for layer in geometry.layers],
            values=[buffer(layer.value_heads, layer.value_dim) for layer in geometry.layers],
            overflow=buffer(1, 1),
            reserved=reserved,
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> "CacheBuffers":
        """A cache of the results of *change*, called with each buffer."""
        keys, values = list(map(change, self.keys)), list(map(change, self.values))
        return CacheBuffers(keys, values, change(self.overflow), self.reserved)

    def row(self, row: int) -> "CacheBuffers":
        """The cache of one row, in the same memory."""
        return self.map(lambda buffer: buffer[row : row + 1])

    @property
    def slots(self) -> int:
        """Slots per row."""
        return self.keys[0].shape[2]

    def addresses(self, span: int) -> Tensor:
        """Addresses that a forward over the first *span* positions attends to, ``[reserved + span]``."""
        return torch.arange(-self.reserved, span)

    @property
    def states(self) -> tuple[Tensor, ...]:
        """All keys, then all values."""
        return (*self.keys, *self.values)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All keys, all values, and the overflow: the order in which a step takes them."""
        return (*self.states, self.overflow)
