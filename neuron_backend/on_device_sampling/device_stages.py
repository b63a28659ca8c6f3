"""
Device variants of TopK and TopP, without sort, cumulative sum or data-dependent shapes.

They follow the host's definitions, ties included, in operations that neuronx-cc supports. Probabilities are
summed in float32, exactly on the host: a token at the boundary may differ if two sums differ by rounding.
"""

import math

import attrs
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...decoding.history import History
from ...processors import TopK, TopP
from ...processors.parameter import per_row
from ..lint.graph_rules import WIDEST_TOP_K

LARGEST_K = WIDEST_TOP_K // 2
"""The largest k for which the top-k of two pieces together is no wider than one piece."""

_RANGE = 104.0
"""Logits this far below the largest have weight exp(-104), which is 0 in float32."""

_HALVINGS = 34
"""Bisection steps, down to 6e-9: closer logits are considered tied up to rounding."""


@attrs.frozen(eq=False)
class DeviceTopK:
    """:class:`~decodekit.processors.TopK` in two steps: the top-k of pieces, then of those."""

    host: TopK

    largest: int
    """Largest k of all rows."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask all but the *k* largest of ``[batch, width, vocab]`` logits, which are not modified."""
        k = per_row("k", self.host.k, logits)
        values = descending(logits, self.largest)
        if isinstance(k, Tensor):
            last = k.clamp(1, values.shape[-1]) - 1
            kth = values.gather(-1, last.expand(-1, logits.shape[1], 1)).masked_fill(k == 0, -torch.inf)
        else:
            kth = values[..., -1:]
        if self.host.ties == "keep":
            return logits.masked_fill(logits < kth, -torch.inf)
        room = k - (logits > kth).float().sum(dim=-1, keepdim=True)
        # For rows without top-k (k = 0), the k-th logit is -inf, which is masked already.
        return logits.masked_fill(~_reaching(logits, kth, room, "first"), -torch.inf)


@attrs.frozen(eq=False)
class DeviceTopP:
    """
    :class:`~decodekit.processors.TopP` without sorting the vocabulary.

    After a top-k, the nucleus depends only on the survivors' values and on the number of tokens tied with
    the last of them; the cumulative sum is a matmul with a triangle of ones. Otherwise, the edge of the
    nucleus is found by bisection over the range of the logits, with a sum over the vocabulary per step.
    """

    host: TopP

    survivors: int | None
    """Values kept by a preceding top-k, ties with the last not counted; None without one."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask the tail of ``[batch, width, vocab]`` logits, which are not modified."""
        if self.survivors is None:
            edge, room = self._edge_by_halving(logits)
        else:
            edge, room = self._edge_among(descending(logits, self.survivors), logits)
        kept = logits >= edge if self.host.ties == "keep" else _reaching(logits, edge, room, self.host.ties)
        if isinstance(self.host.p, Tensor):
            # A row with p = 1 keeps all tokens, even those whose weight rounds to 0.
            kept = kept | per_row("p", self.host.p >= 1, logits)
        return logits.masked_fill(~kept, -torch.inf)

    def _edge_among(self, values: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest logit kept, and number of tokens tied with it to keep, both ``[batch, width, 1]``."""
        minimum, last = self.host.min_tokens, values[..., -1:]
        above = values > last
        tied = _count(logits == last)

        weights = (values - _or_zero(values[..., :1])).exp()
        # All tokens tied with the last value count, of which *values* holds only some.
        lowest = tied * weights[..., -1:]
        greater = weights * above
        spared = self._spared(_sum(greater) + lowest)

        # Mass of each greater value and of everything below it.
        size = values.shape[-1]
        reached = greater @ torch.ones(size, size, device=values.device).tril() + lowest
        stays = above & ((reached > spared) | (torch.arange(size, device=values.device) < minimum))
        count = _count(stays)

        # Tokens tied with the last value, minus those that the dropped mass covers.
        needed = (minimum - _count(above)).clamp(min=0).minimum(tied)
        room = (tied - (spared / weights[..., -1:]).floor()).maximum(needed)
        smallest = values.masked_fill(~stays, torch.inf).amin(dim=-1, keepdim=True)
        edge = torch.where(room > 0, last, smallest)
        return edge, torch.where(room > 0, room, count - _count(values > smallest))

    def _edge_by_halving(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`_edge_among`."""
        largest = descending(logits, self.host.min_tokens)
        best, least = _or_zero(largest[..., :1]), largest[..., -1:]
        weights = (logits - best).exp()
        spared = self._spared(_sum(weights))

        low, high = best - _RANGE, best
        for _ in range(_HALVINGS):
            middle = (low + high) * 0.5
            falls = _sum(torch.where(logits <= middle, weights, 0)) <= spared
            low, high = torch.where(falls, middle, low), torch.where(falls, high, middle)

        edge = torch.where(logits > low, logits, torch.inf).amin(dim=-1, keepdim=True)
        below = _sum(torch.where(logits < edge, weights, 0))
        room = _count(logits == edge) - ((spared - below) / (edge - best).exp()).floor()
        # The min_tokens most likely tokens are always kept.
        lowered = edge.minimum(least)
        needed = self.host.min_tokens - _count(logits > lowered)
        return lowered, torch.where(lowered < edge, needed, room.maximum(needed))

    def _spared(self, total: Tensor) -> Tensor:
        return per_row("p", 1 - self.host.p, total) * total


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


def _reaching(logits: Tensor, edge: Tensor, room: Tensor, ties: str) -> Tensor:
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
    square = torch.ones(size, size, device=device)
    return square.triu(1) if ties == "first" else square.tril(-1)


def _sum(values: Tensor) -> Tensor:
    return values.sum(dim=-1, keepdim=True)


def _count(mask: Tensor) -> Tensor:
    return _sum(mask.float())


def _or_zero(value: Tensor) -> Tensor:
    """*value*, or 0 for -inf, since -inf - -inf is NaN."""
    return torch.where(value > -torch.inf, value, 0)
