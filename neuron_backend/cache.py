"""The cache that is addressed by position."""

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from .geometry import Geometry


@attrs.frozen(eq=False)
class CacheBuffers:
    """
    Keys and values of every layer, ``[batch, heads, slots, head_dim]``.

    Slot *p* of a row belongs to its position *p*. The last slot is the spare one, where padding
    goes. Those in between are scratch, for columns of a tree that share a position with others;
    there are none where nobody scores trees.
    """

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def zeros(cls, geometry: Geometry, batch_size: int, max_length: int, scratch: int = 0) -> "CacheBuffers":
        """An empty cache for a model of that *geometry*, with *scratch* slots besides."""

        def buffer(heads: int, dim: int) -> Tensor:
            return torch.zeros(batch_size, heads, max_length + scratch + 1, dim, dtype=geometry.cache_dtype)

        return cls(
            keys=[buffer(layer.key_heads, layer.key_dim) for layer in geometry.layers],
            values=[buffer(layer.value_heads, layer.value_dim) for layer in geometry.layers],
        )

    @property
    def slots(self) -> int:
        """Slots of a row."""
        return self.keys[0].shape[2]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All keys, then all values: how a step takes them."""
        return (*self.keys, *self.values)


class PositionedCache:
    """
    What the layers of a Hugging Face model see during one forward.

    A layer gives its new keys and values and attends to what it gets back: the whole buffer,
    into which they have been written at *slots*. What it may not look at, the mask says.
    """

    is_compileable = True

    def __init__(self, tensors: Sequence[Tensor], slots: Tensor):
        """
        Wrap buffers for one forward.

        Args:
            tensors: :attr:`CacheBuffers.tensors`; written in place.

            slots: Where each column goes, ``[batch, width]`` int64.
        """
        half = len(tensors) // 2
        self._keys, self._values = tensors[:half], tensors[half:]
        self._rows = torch.arange(slots.shape[0], device=slots.device)[:, None]
        self._slots = slots

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write ``[batch, heads, width, head_dim]`` states of one layer; return its buffers."""
        self._write(self._keys[layer_idx], key_states)
        self._write(self._values[layer_idx], value_states)
        return self._keys[layer_idx], self._values[layer_idx]

    def _write(self, buffer: Tensor, states: Tensor) -> None:
        # Several padding columns of a row meet in the spare slot; whichever wins, no token sees it.
        buffer.transpose(1, 2).index_put_((self._rows, self._slots), states.transpose(1, 2))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: models add this to positions that they make themselves, and ours are given."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """0, as :meth:`get_seq_length`."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Slots that a layer attends to, and the first of them."""
        return self._keys[layer_idx].shape[2], 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Slots of a row, the spare one included."""
        return self._keys[0].shape[2]

    def __len__(self) -> int:
        return len(self._keys)
