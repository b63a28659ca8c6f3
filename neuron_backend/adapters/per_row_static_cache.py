"""transformers' StaticCache with a position of its own for each row."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, StaticCache
from transformers.cache_utils import StaticLayer

from ..kv_cache.overflow import overflowed, take_usable
from ..models.unsupported import UnsupportedArchitecture


class PerRowLayer(StaticLayer):  # type: ignore[no-untyped-call]  # its hook for subclasses is untyped
    """
    A layer whose columns are written to given slots.

    :class:`~transformers.cache_utils.StaticLayer` counts the tokens that it has seen, one count for all
    rows (transformers 5.24, cache_utils.py, ``StaticLayer.update``), so it can neither hold rows of different
    lengths nor be rewound.
    """

    written: Tensor
    """Slot that each column is written to, ``[batch, width]`` int64."""

    largest: Tensor | None = None
    """The largest magnitude of each column that was written in a forward, ``[batch, width]``."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """
        Write ``[batch, heads, width, head_dim]`` states to :attr:`written`; return all slots.

        0 is written in place of numbers that overflowed (:mod:`~..kv_cache.overflow`).
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        slots = self.written[:, None, :, None]
        keys, largest_key = take_usable(key_states)
        values, largest_value = take_usable(value_states)
        self.keys.scatter_(2, slots.expand(keys.shape), keys)
        self.values.scatter_(2, slots.expand(values.shape), values)
        self.largest = torch.maximum(largest_key, largest_value)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """0: models add it to positions that they compute themselves; here positions are passed in."""
        return 0


class PerRowStaticCache(StaticCache):
    """
    A StaticCache whose rows are at positions of their own.

    Layers with a sliding window keep every position as well, since a ring that has overwritten a token cannot
    be rewound; the mask hides what is out of reach.
    """

    def __init__(self, config: PreTrainedConfig, max_cache_len: int, marks: Tensor):
        """
        Lay out a cache with *max_cache_len* slots in every layer; it is allocated by the first forward.

        Args:
            config: The model's.

            max_cache_len: Slots of each layer.

            marks: 1 for each slot whose token overflowed, else 0: ``[batch, slots]``; written in place.

        Raises:
            UnsupportedArchitecture: A layer keeps something else than keys and values by position.
        """
        super().__init__(config, max_cache_len)
        other = [type(layer).__name__ for layer in self.layers if not isinstance(layer, StaticLayer)]
        if other:
            raise UnsupportedArchitecture(
                type(config).__name__, f"its cache must hold keys and values by position: got {other[0]}"
            )
        self._rows = [PerRowLayer(max_cache_len) for _ in self.layers]
        self.layers = list(self._rows)
        self._marks = marks

    def write_to(self, slots: Tensor) -> None:
        """Let the next forward write its columns to *slots*, ``[batch, width]`` int64."""
        for layer in self._rows:
            layer.written = slots

    def mark_overflow(self) -> Tensor:
        """Mark which of the written columns overflowed, after the last layer; the marks of all slots."""
        each = [layer.largest for layer in self._rows if layer.largest is not None]
        for layer in self._rows:
            # A compiled graph would have what is left here as an output.
            layer.largest = None
        largest = torch.stack(each).amax(dim=0)
        return self._marks.scatter_(1, self._rows[0].written, overflowed(largest).to(self._marks.dtype))
