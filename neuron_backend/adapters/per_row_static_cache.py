"""transformers' StaticCache with a position of its own for each row."""

from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig, StaticCache
from transformers.cache_utils import StaticLayer

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

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write ``[batch, heads, width, head_dim]`` states to :attr:`written`; return all slots."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        slots = self.written[:, None, :, None]
        self.keys.scatter_(2, slots.expand(key_states.shape), key_states)
        self.values.scatter_(2, slots.expand(value_states.shape), value_states)
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

    def __init__(self, config: PreTrainedConfig, max_cache_len: int):
        """
        Lay out a cache with *max_cache_len* slots in every layer; it is allocated by the first forward.

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

    def write_to(self, slots: Tensor) -> None:
        """Let the next forward write its columns to *slots*, ``[batch, width]`` int64."""
        for layer in self._rows:
            layer.written = slots
