"""
The cache that is addressed by position.

A slot has an address. Position *p* of a row lives at address *p*. Negative addresses are no
positions: -1 is the spare slot, where padding goes, and -2, -3, ... are scratch, one for each
column of the widest tree. They lie in front, so that the reserved slots and the first positions
are one piece of each buffer: what a forward of a short span attends to. The last slot is never
part of that: a compiler that leaves the span open is then sure that the piece is not the whole.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from .geometry import Geometry

SPARE = -1
"""The address of the slot that padding is written to."""


@attrs.frozen(eq=False)
class CacheBuffers:
    """Keys and values of every layer, ``[batch, heads, slots, head_dim]``, in the order of addresses."""

    keys: list[Tensor]
    values: list[Tensor]
    reserved: int
    """Slots that belong to no position: the spare one, and scratch where trees are scored."""

    @classmethod
    def zeros(cls, geometry: Geometry, batch_size: int, max_length: int, scratch: int = 0) -> "CacheBuffers":
        """An empty cache for a model of that *geometry*, with *scratch* slots besides."""

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
        """Slots of a row."""
        return self.keys[0].shape[2]

    def addresses(self, span: int) -> Tensor:
        """Of the slots that a forward over the first *span* positions attends to, ``[reserved + span]``."""
        return torch.arange(-self.reserved, span)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All keys, then all values: how a step takes them."""
        return (*self.keys, *self.values)


Write = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Buffer, rows, slots, states ``[batch, heads, width, head_dim]`` to the buffer that holds them."""


def in_place(buffer: Tensor, rows: Tensor, slots: Tensor, states: Tensor) -> Tensor:
    """Write into *buffer* itself: no copy."""
    # Several padding columns of a row meet in the spare slot; whichever wins, no token sees it.
    buffer.transpose(1, 2).index_put_((rows, slots), states.transpose(1, 2))
    return buffer


def out_of_place(buffer: Tensor, rows: Tensor, slots: Tensor, states: Tensor) -> Tensor:
    """A new buffer, for compilers that turn what a graph returns into what it was given."""
    # By all dimensions but head_dim: a buffer that no one transposes can be written where it lies.
    heads = torch.arange(buffer.shape[1], dtype=slots.dtype, device=slots.device)[:, None]
    return buffer.index_put((rows[:, None], heads, slots[:, None]), states)


class PositionedCache:
    """
    What the layers of a Hugging Face model see during one forward.

    A layer gives its new keys and values and attends to what it gets back: the first slots of
    the buffers into which they have been written. What it may not look at, the mask says.
    """

    is_compileable = True

    is_initialized = True

    def __init__(
        self,
        tensors: Sequence[Tensor],
        written: Tensor,
        slots: Tensor,
        write: Write = in_place,
        columns: Tensor | None = None,
    ):
        """
        Wrap buffers for one forward.

        Args:
            tensors: :attr:`CacheBuffers.tensors`.

            written: The address that each column goes to, ``[batch, width]`` int64.

            slots: The addresses that are attended to: :meth:`CacheBuffers.addresses`.

            write: :func:`in_place` or :func:`out_of_place`.

            columns: The position of each column, ``[batch, width]`` int64, where some are written
                to scratch. None: a column's address is its position.
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
        """The buffers as they are now: all keys, then all values."""
        return (*self._keys, *self._values)

    @property
    def positions(self) -> Tensor:
        """The position of what each slot holds, ``[batch or 1, slots]``; 0 where that is no token's."""
        if self._columns is None:
            return self._addresses.clamp(min=0)[None]
        at = self._written[..., None] == self._addresses
        columns = torch.where(at, self._columns[..., None], 0).sum(dim=1)
        return torch.where(self._addresses < 0, columns, self._addresses)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write ``[batch, heads, width, head_dim]`` states of one layer; return what it attends to."""
        self._keys[layer_idx] = self._write(self._keys[layer_idx], self._rows, self._slots, key_states)
        self._values[layer_idx] = self._write(self._values[layer_idx], self._rows, self._slots, value_states)
        return self._first(self._keys[layer_idx]), self._first(self._values[layer_idx])

    def _first(self, buffer: Tensor) -> Tensor:
        # A slice would ask whether that is all of it, and be compiled for one answer.
        return buffer.narrow(2, 0, self._attended)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: models add this to positions that they make themselves, and ours are given."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """0, as :meth:`get_seq_length`."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Slots that a layer attends to, and the first of them."""
        return self._attended, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Slots of a row that are attended to."""
        return self._attended

    get_max_cache_shape = get_max_length
    """What transformers calls it before 5."""

    def __len__(self) -> int:
        return len(self._keys)
