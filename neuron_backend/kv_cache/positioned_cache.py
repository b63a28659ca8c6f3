"""The KV cache as a model's layers use it during one forward."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .buffers import SPARE
from .overflow import overflowed, take_usable
from .writes import CacheWrite, write_in_place


class PositionedCache:
    """
    The cache object that a Hugging Face model's layers update during one forward.

    A layer passes its new keys and values to :meth:`update`, which writes them into the buffers and returns
    the slots to attend to. The mask hides the others. After the last layer, :meth:`mark_overflow` records
    which columns overflowed.
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
        row: Tensor | None = None,
    ):
        """
        Wrap buffers for one forward.

        Args:
            tensors: :attr:`CacheBuffers.tensors`.

            written: Address that each column is written to, ``[batch, width]`` int64.

            slots: Addresses that are attended to: :meth:`CacheBuffers.addresses`.

            write: Writes states into a buffer; see :mod:`.writes`.

            columns: Position of each column, ``[batch, width]`` int64, if some are written to scratch
                slots. None: each column's address is its position.

            row: The row of the buffers that the columns belong to, ``[1]``; *written* is then ``[1, width]``.
                None: there are columns of every row.
        """
        *states, self._overflow = tensors
        half = len(states) // 2
        self._keys, self._values = states[:half], states[half:]
        # From the first layer on, so that all layers run the same operations.
        self._largest = torch.zeros(written.shape, dtype=self._overflow.dtype, device=written.device)
        every = torch.arange(self._overflow.shape[0], dtype=written.dtype, device=written.device)[:, None]
        # For a write of one row, the others write padding: one form of write serves both.
        self._slots = (written if row is None else torch.where(every == row, written, SPARE)) - slots[0]
        self._rows, self._row = every, row
        self._attended = slots.shape[0]
        self._write = write
        self._addresses, self._written, self._columns = slots, written, columns

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The current buffers, as in :attr:`CacheBuffers.tensors`."""
        return (*self._keys, *self._values, self._overflow)

    @property
    def column_positions(self) -> Tensor:
        """Position of each column, ``[batch, width]``; 0 for padding."""
        return self._written.clamp(min=0) if self._columns is None else self._columns

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
        for buffers, states in ((self._keys, key_states), (self._values, value_states)):
            usable, largest = take_usable(states)
            self._largest = torch.maximum(self._largest, largest)
            buffers[layer_idx] = self._put(buffers[layer_idx], usable)
        return self._first(self._keys[layer_idx]), self._first(self._values[layer_idx])

    def mark_overflow(self, total: Callable[[Tensor], Tensor] = lambda flags: flags) -> Tensor:
        """
        Record which of the written columns overflowed, after the last layer.

        Args:
            total: The sum over all ranks that share the model's heads, of ``[batch, width]`` flags.

        Returns:
            1 for each attended slot whose token overflowed, else 0: ``[batch or 1, slots]``.
        """
        flags = total(overflowed(self._largest))
        self._overflow = self._put(self._overflow, flags[:, None, :, None])
        return self._first(self._overflow)[:, 0, :, 0]

    def _put(self, buffer: Tensor, states: Tensor) -> Tensor:
        if self._row is not None:
            states = states.expand(buffer.shape[0], -1, -1, -1)
        return self._write(buffer, self._rows, self._slots, states)

    def _first(self, buffer: Tensor) -> Tensor:
        # Slicing would specialise on whether the slice is the whole buffer.
        attended = buffer.narrow(2, 0, self._attended)
        return attended if self._row is None else attended.index_select(0, self._row)

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
