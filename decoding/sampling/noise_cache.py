"""A cache of noise, computed for several positions at a time."""

import attrs
import numpy as np
from numpy.typing import NDArray

from . import noise

_POSITIONS = 16
"""Positions computed together: a few hundred numbers take little longer than one."""

_BLOCKS = 2048
"""The largest number of cached blocks of positions, about 50 kB each: two per row."""


@attrs.define(eq=False)
class NoiseCache:
    """
    The standard exponential numbers of one *purpose*, with those of the next positions.

    They equal those of :func:`~.noise.exponential`, in any order of access.
    """

    purpose: int

    _known: dict[tuple[int, int], tuple[int, NDArray[np.float64]]] = attrs.field(factory=dict, init=False)
    """By stream and parity of the block's index: that index, and ``[positions, count]``."""

    def at(self, stream: int, position: int, count: int) -> NDArray[np.float64]:
        """The numbers of the indices 0 to *count* - 1, ``[count]``; read-only."""
        noise.require_numbers()
        number, place = divmod(position, _POSITIONS)
        known, block = self._known.get((stream, number & 1), (-1, None))
        if block is None or known != number or block.shape[1] != count:
            block = self._make(stream, number, count)
        found: NDArray[np.float64] = block[place]
        return found

    def _make(self, stream: int, number: int, count: int) -> NDArray[np.float64]:
        positions = np.arange(number * _POSITIONS, (number + 1) * _POSITIONS)
        drawn = noise.exponential(np.array(stream), positions[:, None], self.purpose, np.arange(count))
        block: NDArray[np.float64] = drawn.numpy()
        key = stream, number & 1
        if key not in self._known and len(self._known) >= _BLOCKS:
            self._known.clear()
        self._known[key] = number, block
        return block
