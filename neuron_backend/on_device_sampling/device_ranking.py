"""Largest logits and ties without sort, cumulative sum or data-dependent shapes."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..lint.graph_rules import WIDEST_TOP_K

LARGEST_K = 256
"""
The largest k of a device's top-k: NxD Inference's ``global_topk`` (4bcdc54, models/config.py,
OnDeviceSamplingConfig) and vLLM Neuron's limit (a5ef7c8).
"""


def descending(logits: Tensor, k: int) -> Tensor:
    """
    The *k* largest of ``[batch, width, n]``, in descending order.

    Repeats a two-dimensional top-k over pieces of at most :data:`~..lint.graph_rules.WIDEST_TOP_K` until one
    piece is left.

    Args:
        logits: NaN counts as the largest.

        k: At most :data:`LARGEST_K`.

    Returns:
        ``[batch, width, k]``, padded with ``-inf`` if n < k.
    """
    batch, width, vocab = logits.shape
    values = logits.reshape(batch * width, vocab)
    while values.shape[-1] > WIDEST_TOP_K:
        pieces = -(-values.shape[-1] // WIDEST_TOP_K)
        size = -(-values.shape[-1] // pieces)
        filled = pad(values, (0, pieces * size - values.shape[-1]), value=-torch.inf)
        largest = filled.reshape(-1, size).topk(min(k, size), dim=-1).values
        values = largest.reshape(batch * width, -1)
    values = values.topk(min(k, values.shape[-1]), dim=-1).values
    return pad(values, (0, k - values.shape[-1]), value=-torch.inf).reshape(batch, width, k)


def reaching(logits: Tensor, edge: Tensor, room: Tensor, ties: str) -> Tensor:
    """True for logits above *edge*, and for the first or last *room* of those equal to it."""
    tied = logits == edge
    return (logits > edge) | (tied & (_preceding(tied, ties) < room))


def _preceding(tied: Tensor, ties: str) -> Tensor:
    """
    Number of *tied* tokens at lower ids (*ties* ``"first"``) or higher ids (``"last"``).

    Counted within blocks, then over blocks. Counts stay below 2^24, so float32 is exact.
    """
    vocab = tied.shape[-1]
    size = math.isqrt(vocab - 1) + 1
    blocks = -(-vocab // size)
    ones = pad(tied.float(), (0, blocks * size - vocab)).reshape(*tied.shape[:-1], blocks, size)
    within = ones @ _strict_triangle(size, ties, tied.device)
    before = ones.sum(dim=-1) @ _strict_triangle(blocks, ties, tied.device)
    return (within + before[..., None]).reshape(*tied.shape[:-1], blocks * size)[..., :vocab]


def _strict_triangle(size: int, ties: str, device: torch.device) -> Tensor:
    """``[size, size]`` matrix: a row vector times it sums the elements before, or after, each."""
    square = torch.ones(size, size, dtype=torch.float32, device=device)
    return square.triu(1) if ties == "first" else square.tril(-1)
