"""Edge of the nucleus, found without sorting the whole vocabulary."""

from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from ...decoding.sampling.few_tokens import Floats, Ints
from ...decoding.sampling.scratch import scratch
from ..numerics.exact_sum import in_units, whole_weights

_SAMPLE = 2048
"""Number of logits sampled for a first estimate."""

_CHUNK = 256
"""Number of weights summed before the prefix sum over chunks."""


@attrs.frozen(eq=False)
class Edge:
    """End of the dropped tail of one column."""

    floor: float
    """The smallest logit that stays."""

    dropped: int
    """Number of tokens tied with the floor that are dropped."""

    head: Ints
    """Token ids, ascending; a superset of the kept tokens."""


def scratch_weights(logits: Tensor, best: Tensor) -> Tensor:
    """
    The whole weights of *logits* in float32, which can hold them but not their sums.

    Args:
        logits: ``[..., n]`` float32 on the host.

        best: The largest of each row, ``[..., 1]``, finite.

    Returns:
        ``[..., n]`` float32, in :func:`~decodekit.decoding.sampling.scratch.scratch` memory.
    """
    return in_units(torch.sub(logits, best, out=scratch(logits, "weights")))


def edge_of(logits: Floats, weights: Floats, total: float, spared: float, min_tokens: int) -> Edge:
    """
    Edge of the tail: the smallest tokens, dropped while their total weight is at most *spared*.

    Args:
        logits: ``[vocab]``, finite or ``-inf``.

        weights: Their :func:`~decodekit.processors.numerics.exact_sum.whole_weights`, ``[vocab]``.

        total: The sum of the weights.

        spared: Largest weight of the tail; at 0 nothing is dropped.

        min_tokens: Minimum number of tokens kept.
    """
    # An estimate that is verified: if all tokens below it weigh at most *spared*, all of them are
    # in the tail, which takes the smallest first.
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
    """Logit below which the tail weighs about 3/4 of *spared*, estimated from a sample."""
    stride = -(-len(logits) // _SAMPLE)
    few = logits[::stride]
    order = few.argsort()
    weighed = stride * weights[::stride][order].cumsum(dtype=np.float64)
    reached = int(np.searchsorted(weighed, 0.75 * spared))
    return few[order[reached - 1]] if reached else np.float32(-np.inf)


def _count_within(weights: Floats, allowed: float) -> int:
    """Number of leading *weights* (integers) with a sum of at most *allowed*."""
    whole = len(weights) // _CHUNK * _CHUNK
    reached = weights[:whole].reshape(-1, _CHUNK).sum(axis=1).cumsum()
    full = int(np.searchsorted(reached, allowed, side="right"))
    before = reached[full - 1] if full else 0.0
    start = full * _CHUNK
    last = before + weights[start : start + _CHUNK].cumsum()
    return start + int(np.searchsorted(last, allowed, side="right"))
