"""Where a nucleus ends, found without sorting all of the vocabulary."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .exact_sum import whole_weights

Floats = NDArray[np.floating]

_SAMPLE = 2048
"""How many logits a first guess looks at."""

_CHUNK = 256
"""How many weights are added up before their sums are."""


def edges(
    logits: Tensor, weights: Tensor, total: Tensor, spared: Tensor, min_tokens: int
) -> tuple[Tensor, Tensor]:
    """
    Where the tail ends if tokens fall in ascending order while they weigh at most *spared*.

    Args:
        logits: ``[batch, width, vocab]``, finite or ``-inf``.

        weights: Their :func:`~decodekit.processors.exact_sum.whole_weights`, the same shape.

        total: The sums of the weights, ``[batch, width, 1]`` float64.

        spared: What the tail may weigh, ``[batch, width, 1]`` float64; where it is 0, there is
            no tail.

        min_tokens: How many of the largest do not fall.

    Returns:
        The smallest logit that stays, ``[batch, width, 1]``; and how many of the tokens that
        are tied with it fall, ``[batch, width, 1]`` int64.
    """
    vocab = logits.shape[-1]
    cells = zip(
        logits.numpy(force=True).reshape(-1, vocab),
        weights.numpy(force=True).reshape(-1, vocab),
        total.flatten().tolist(),
        spared.flatten().tolist(),
        strict=True,
    )
    floors, dropped = zip(*(_edge(*cell, min_tokens) for cell in cells), strict=True)
    floor = torch.tensor(floors, dtype=logits.dtype).view(total.shape)
    return floor, torch.tensor(dropped, dtype=torch.int64).view(total.shape)


def _edge(logits: Floats, weights: Floats, total: float, spared: float, min_tokens: int) -> tuple[float, int]:
    if spared <= 0:
        return -np.inf, 0
    head, below = _head(logits, weights, total, spared)
    if len(head) < min_tokens:
        head, below = logits[logits > -np.inf], 0.0
    head.sort()
    fallen = _count_within(whole_weights(torch.from_numpy(head)).numpy(), spared - below)
    fallen = min(fallen, len(head) - min_tokens)
    if fallen < 0:
        return -np.inf, 0
    return float(head[fallen]), int(fallen - np.searchsorted(head, head[fallen]))


def _head(logits: Floats, weights: Floats, total: float, spared: float) -> tuple[Floats, float]:
    """
    Logits that the edge is certainly among, and what all others weigh.

    A guess, and the proof of it: if what lies below weighs no more than may be spared, all of
    it falls, for the tail takes the smallest first.
    """
    above = np.flatnonzero(logits > _guess(logits, weights, spared))
    below = total - float(weights[above].sum(dtype=np.float64))
    if below <= spared:
        return logits[above], below
    return logits[logits > -np.inf], 0.0


def _guess(logits: Floats, weights: Floats, spared: float) -> np.floating:
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
