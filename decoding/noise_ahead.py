"""Numbers of the noise, for a few positions at a time."""

import attrs
import numpy as np
from numpy.typing import NDArray

from . import noise

_POSITIONS = 16
"""Taken together. A few hundred numbers take little longer than one."""

_STRETCHES = 512
"""Remembered at most: as many rows and more, some 50 kilobytes each."""


@attrs.define(eq=False)
class NoiseAhead:
    """
    The standard exponential numbers of one *purpose*, and those that the next positions will need.

    They are :func:`~.noise.exponential`'s own, a function of the keys alone, whoever asks first.
    """

    purpose: int
    _known: dict[tuple[int, int, int], NDArray[np.float64]] = attrs.field(factory=dict, init=False)

    def at(self, stream: int, position: int, count: int) -> NDArray[np.float64]:
        """Those of the indices 0 to *count* - 1, ``[count]``; not to be written to."""
        noise.require_numbers()
        key = stream, position // _POSITIONS, count
        stretch = self._known.get(key)
        if stretch is None:
            stretch = self._stretch(*key)
        numbers: NDArray[np.float64] = stretch[position % _POSITIONS]
        return numbers

    def _stretch(self, stream: int, number: int, count: int) -> NDArray[np.float64]:
        positions = np.arange(number * _POSITIONS, (number + 1) * _POSITIONS)
        drawn = noise.exponential(np.array(stream), positions[:, None], self.purpose, np.arange(count))
        if len(self._known) >= _STRETCHES:
            self._known.clear()
        stretch = self._known[stream, number, count] = drawn.numpy()
        return stretch
