"""Numbers of the noise, for a few positions at a time."""

import attrs
import numpy as np
from numpy.typing import NDArray

from . import noise

_POSITIONS = 16
"""Taken together. A few hundred numbers take little longer than one."""

_STRETCHES = 2048
"""Remembered at most, some 50 kilobytes each: two a row, where somebody may look across the end of one."""


@attrs.define(eq=False)
class NoiseCache:
    """
    The standard exponential numbers of one *purpose*, and those that the next positions will need.

    They are :func:`~.noise.exponential`'s own, a function of the keys alone, whoever asks first.
    """

    purpose: int

    _known: dict[tuple[int, int], tuple[int, NDArray[np.float64]]] = attrs.field(factory=dict, init=False)
    """By stream, and whether the number of a stretch is odd: that number, and ``[positions, count]``."""

    def at(self, stream: int, position: int, count: int) -> NDArray[np.float64]:
        """Those of the indices 0 to *count* - 1, ``[count]``; not to be written to."""
        noise.require_numbers()
        number, place = divmod(position, _POSITIONS)
        known, stretch = self._known.get((stream, number & 1), (-1, None))
        if stretch is None or known != number or stretch.shape[1] != count:
            stretch = self._make(stream, number, count)
        found: NDArray[np.float64] = stretch[place]
        return found

    def _make(self, stream: int, number: int, count: int) -> NDArray[np.float64]:
        positions = np.arange(number * _POSITIONS, (number + 1) * _POSITIONS)
        drawn = noise.exponential(np.array(stream), positions[:, None], self.purpose, np.arange(count))
        stretch: NDArray[np.float64] = drawn.numpy()
        key = stream, number & 1
        if key not in self._known and len(self._known) >= _STRETCHES:
            self._known.clear()
        self._known[key] = number, stretch
        return stretch
