"""Where a nucleus ends, found without sorting all of the vocabulary."""

from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from .exact_sum import whole_weights

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]

_SAMPLE = 2048
"""How many logits a first guess looks at."""

_CHUNK = 256
"""How many weights are added up before their sums are."""


@attrs.frozen(eq=False)
class Edge:
    """Where the tail of one column ends."""

    floor: float
    """The smallest logit that stays."""

    dropped: int
    """How many of the tokens that are tied with it fall."""

    head: Ints
    """Ids of some tokens, ascending: all that stay are among them."""


def edge(logits: Floats, weights: Floats, total: float, spared: float, min_tokens: int) -> Edge:
    """
    Where the tail ends if tokens fall in ascending order while they weigh at most *spared*.

    Args:
        logits: ``[vocab]``, finite or ``-inf``.

        weights: Their :func:`~decodekit.processors.numerics.exact_sum.whole_weights`, ``[vocab]``.

        total: The sum of the weights.

        spared: What the tail may weigh; at 0 nothing falls.

        min_tokens: How many of the largest do not fall.
    """
    # A guess, and the proof of it: if what lies below weighs no more than may be spared, all of
    # it falls, for the tail takes the smallest first.
    head = np.flatnonzero(logits > _estimated_floor(logits, weights, spared))
    below = total - float(weights[head].sum(dtype=np.float64))
    if below > spared or len(head) < min_tokens or spared <= 0:
        head, below = np.flatnonzero(logits > -np.inf), 0.0
    ascending = np.sort(logits[head])
    fallen = 0
    if spared > 0 and len(head) > min_tokens:
        fallen = _count_within(whole_weights(torch.from_numpy(ascending)).numpy(), spared - below)
        fallen = min(fallen, len(head) - min_tokens)
    floor = ascending[fallen]
    return Edge(float(floor), int(fallen - np.searchsorted(ascending, floor)), head)


def _estimated_floor(logits: Floats, weights: Floats, spared: float) -> "np.floating[Any]":
    """Below which logit the tail roughly weighs three quarters of *spared*, from a few of them."""
    stride = -(-len(logits) // _SAMPLE)
    few = logits[::stride]
    order = few.argsort()
    weighed = stride * weights[::stride][order].cumsum(dtype=np.float64)
    reached = int(np.searchsorted(weighed, 0.75 * spared))
    return few[order[reached - 1]] if reached else np.float32(-np.inf)


def _count_within(weights: Floats, allowed: float) -> int:
    """How many of the first *weights* add up to at most *allowed*; whole numbers, in any order."""
    whole = len(weights) // _CHUNK * _CHUNK
    reached = weights[:whole].reshape(-1, _CHUNK).sum(axis=1).cumsum()
    full = int(np.searchsorted(reached, allowed, side="right"))
    before = reached[full - 1] if full else 0.0
    start = full * _CHUNK
    last = before + weights[start : start + _CHUNK].cumsum()
    return start + int(np.searchsorted(last, allowed, side="right"))
