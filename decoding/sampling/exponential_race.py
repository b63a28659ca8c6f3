"""Drawing one of a few tokens, as from all of the vocabulary."""

import math
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from . import noise
from .few import Cell, Few, Ints
from .noise import block_size
from .noise_cache import NoiseCache

_CLEAR = math.exp(-1e-4)
"""
A rival with less of the winner's score than this is beaten. Single precision is wrong by some 3e-6: by
half a unit in the last place of a gap to the largest logit, and no token wins across one of 40.
"""


@attrs.define(eq=False)
class ExponentialRace:
    """
    What :class:`~.sample.Sample` draws: a block by its mass, and a token in it.

    The largest logit + Gumbel noise is the largest weight / exponential noise, which takes fewer logarithms.
    """

    _for_blocks: NoiseCache = attrs.field(factory=lambda: NoiseCache(noise.BLOCK), init=False)

    def __call__(self, few: Few, cell: Cell) -> int | None:
        """The token; None where it is not clear which one, or where some logit is out of the ordinary."""
        best = few.largest()
        if not math.isfinite(best):
            return None
        ids, scores = few.arrays()
        size, position, weights = block_size(cell.vocab), len(cell.tokens), np.exp(scores - best)
        block_of = ids // size
        numbers = self._for_blocks.at(cell.random_stream, position, -(-cell.vocab // size))
        # A block runs as often as it has tokens, which stand side by side.
        ahead = _ahead(np.bincount(block_of, weights).take(block_of), numbers.take(block_of))
        first, last = ahead.item(0), ahead.item(-1)
        if first == last:
            return ids.item(first)
        block = block_of.item(first)
        if block_of.item(last) != block:
            return None
        inside, weights = ids[first : last + 1], weights[first : last + 1]
        numbers = noise.exponential_of_one(cell.random_stream, position, noise.TOKEN, inside - block * size)
        ahead = _ahead(weights, numbers)
        return inside.item(ahead.item(0)) if len(ahead) == 1 else None


def _ahead(weights: NDArray[Any], numbers: NDArray[np.float64]) -> Ints:
    """Where the largest ratio ``[n]`` stands, and all that come close."""
    ratios = weights / numbers
    ahead: Ints = (ratios >= np.maximum.reduce(ratios) * _CLEAR).nonzero()[0]
    return ahead
