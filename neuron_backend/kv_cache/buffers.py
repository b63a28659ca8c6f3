"""
Position-addressed KV cache: its buffers, and the writes into them.

Each slot has an address; position *p* of a row is at address *p*. Negative addresses are reserved: -1 is the
spare slot, which padding is written to, and -2, -3, ... are scratch slots, one per column of the widest tree.
Reserved slots come first, so that they and the leading positions are one contiguous slice of each buffer:
what a forward of a short span attends to. The last slot is never attended to, so that a compiler with a
dynamic span can rely on the slice being smaller than the buffer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from ...decoding.trees import depths, first_branch, paths
from .geometry import Geometry

SPARE = -1
"""Address of the slot that padding is written to."""


@attrs.frozen(eq=False)
class CacheBuffers:
    """Keys and values of every layer, ``[batch, heads, slots, head_dim]``, slots in address order."""

    keys: list[Tensor]
    values: list[Tensor]
    reserved: int
    """Slots before position 0: the spare slot, and scratch slots if trees are scored."""

    @classmethod
    def zeros(cls, geometry: Geometry, batch_size: int, max_length: int, scratch: int = 0) -> "CacheBuffers":
        """An empty cache for *geometry*, with *scratch* additional slots."""

        def buffer(heads: int, dim: int) -> Tensor:
            return torch.zeros(batch_size, heads, reserved + max_length + 1, dim, dtype=geometry.cache_dtype)

        reserved = scratch + 1
        return cls(
            keys=[buffer(layer.key_heads, layer.key_dim) for layer in geometry.layers],
            values=[buffer(layer.value_heads, layer.value_dim) for layer in geometry.layers],
            reserved=reserved,
        )

    @property
    def slots(self) -> int:
        """Slots per row."""
        return self.keys[0].shape[2]

    def addresses(self, span: int) -> Tensor:
        """Addresses that a forward over the first *span* positions attends to, ``[reserved + span]``."""
        return torch.arange(-self.reserved, span)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All keys, then all values: the order in which a step takes them."""
        return (*self.keys, *self.values)


CacheWrite = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Buffer, rows, slots, states ``[batch, heads, width, head_dim]`` to the buffer with the states written."""


def write_in_place(buffer: Tensor, rows: Tensor, slots: Tensor, states: Tensor) -> Tensor:
    """Write into *buffer* itself, without a copy."""
    # Padding columns of a row overwrite each other in the spare slot, which no token attends to.
    buffer.transpose(1, 2).index_put_((rows, slots), states.transpose(1, 2))
    return buffer


def write_copy(buffer: Tensor, rows: Tensor, slots: Tensor, states: Tensor) -> Tensor:
    """Return a new buffer, for compilers that alias a graph's outputs with its inputs."""
    # Indexed by all dimensions but head_dim: without a transpose, compilers can write in place.
    heads = torch.arange(buffer.shape[1], dtype=slots.dtype, device=slots.device)[:, None]
    return buffer.index_put((rows[:, None], heads, slots[:, None]), states)


class PositionedCache:
    """
    The cache object that a Hugging Face model's layers update during one forward.

    A layer passes its new keys and values to :meth:`update`, which writes them into the buffers and returns
    the slots to attend to. The mask hides the others.
    """

    is_compileable = True

    is_initialized = True

    def __init__(
        self,
        tensors: Sequence[Tensor],
        written: Tensor,
        slots: Tensor,
        write: CacheWrite = write_in_place,
        columns: Tensor | None = None,
    ):
        """
        Wrap buffers for one forward.

        Args:
            tensors: :attr:`CacheBuffers.tensors`.

            written: Address that each column is written to, ``[batch, width]`` int64.

            slots: Addresses that are attended to: :meth:`CacheBuffers.addresses`.

            write: :func:`write_in_place` or :func:`write_copy`.

            columns: Position of each column, ``[batch, width]`` int64, if some are written to scratch
                slots. None: each column's address is its position.
        """
        half = len(tensors) // 2
        self._keys, self._values = list(tensors[:half]), list(tensors[half:])
        self._rows = torch.arange(written.shape[0], dtype=written.dtype, device=written.device)[:, None]
        self._slots = written - slots[0]
        self._attended = slots.shape[0]
        self._write = write
        self._addresses, self._written, self._columns = slots, written, columns

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The current buffers: all keys, then all values."""
        return (*self._keys, *self._values)

    @property
    def positions(self) -> Tensor:
        """Position of the token in each slot, ``[batch or 1, slots]``; 0 if a slot holds none."""
        if self._columns is None:
            return self._addresses.clamp(min=0)[None]
        at = self._written[..., None] == self._addresses
        columns = torch.where(at, self._columns[..., None], 0).sum(dim=1)
        return torch.where(self._addresses < 0, columns, self._addresses)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's ``[batch, heads, width, head_dim]`` states; return the slots it attends to."""
        self._keys[layer_idx] = self._write(self._keys[layer_idx], self._rows, self._slots, key_states)
        self._values[layer_idx] = self._write(self._values[layer_idx], self._rows, self._slots, value_states)
        return self._first(self._keys[layer_idx]), self._first(self._values[layer_idx])

    def _first(self, buffer: Tensor) -> Tensor:
        # Slicing would specialise on whether the slice is the whole buffer.
        return buffer.narrow(2, 0, self._attended)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: models add it to positions that they compute themselves; here positions are passed in."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """0, as in :meth:`get_seq_length`."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Number of slots that a layer attends to, and the offset of the first."""
        return self._attended, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Number of slots that a layer attends to."""
        return self._attended

    get_max_cache_shape = get_max_length
    """The name in transformers before 5."""

    def __len__(self) -> int:
        return len(self._keys)


def lay_out_tree(ids: Tensor, cache_pos: Tensor, parents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """
    Layout of a tree's columns, computed on the host: the inputs of a :class:`~..step.TreeStep` besides *ids*.

    Args:
        ids: Tokens, ``[batch, width]``; -1 is padding.

        cache_pos: Position of the root columns, ``[batch]``.

        parents: Parent column of each, ``[batch, width]``; -1 for a root.

    Returns:
        Position of each column and the address that it is written to, both ``[batch, width]``: its position
        on the first branch, its scratch slot elsewhere. And the columns that each attends to,
        ``[batch, width, width]`` bool. Padding is at position 0 and attends to its scratch slot.
    """
    tree = ids.numpy(), parents.numpy()
    positions = np.where(tree[0] >= 0, cache_pos.numpy()[:, None] + depths(*tree), 0)
    written = np.where(first_branch(*tree), positions, SPARE - 1 - np.arange(ids.shape[1]))
    return torch.from_numpy(positions), torch.from_numpy(written), torch.from_numpy(paths(*tree))
