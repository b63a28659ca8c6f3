"""The exponential race: sampling one of a few tokens as from the whole vocabulary."""

import math
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from . import noise
from .few_tokens import Cell, Few, Ints
from .noise import block_size
from .noise_cache import NoiseCache

_CLEAR = math.exp(-1e-4)
"""
A ratio below this share of the largest is clearly smaller. The error of single precision is about 3e-6:
half a unit in the last place of a gap to the largest logit, and no token wins across a gap of 40.
"""


@attrs.define(eq=False)
class ExponentialRace:
    """
    Sample as :class:`~.sample.Sample` does: a block by its mass, and a token in it.

    The argmax of logit + Gumbel noise is that of weight / exponential noise, with fewer logarithms.
    """

    _for_blocks: NoiseCache = attrs.field(factory=lambda: NoiseCache(noise.BLOCK), init=False)

    def __call__(self, few: Few, cell: Cell) -> int | None:
        """The token; None if the winner is not clear, or a logit is not finite."""
        best = few.largest()
        if not math.isfinite(best):
            return None
        ids, scores = few.arrays()
        size, position, weights = block_size(cell.vocab), len(cell.tokens), np.exp(scores - best)
        block_of = ids // size
        numbers = self._for_blocks.at(cell.random_stream, position, -(-cell.vocab // size))
        # One entry per token; the tokens of a block are adjacent.
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
    """The indices of the largest ratio ``[n]`` and of all that are close to it."""
    ratios = weights / numbers
    ahead: Ints = (ratios >= np.maximum.reduce(ratios) * _CLEAR).nonzero()[0]
    return ahead
