"""
Top-k and top-p without a sort, a running sum or a shape that follows data.

The host's definitions, ties included, in operations that neuronx-cc takes. Probabilities are
added up in float32 here and exactly there: a token may fall on the other side where two sums
differ by rounding alone.
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
"""The largest k of which the top-k of pieces is narrower than the pieces were."""

_RANGE = 104.0
"""What is less likely than exp(-104) of the likeliest weighs nothing in float32."""

_HALVINGS = 34
"""Down to 6e-9: logits that are closer than that are tied but for rounding."""


@attrs.frozen(eq=False)
class DeviceTopK:
    """:class:`~decodekit.processors.TopK` in two steps: the largest of pieces, then of those."""

    host: TopK

    largest: int
    """Of all rows' k."""

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
        # Of rows that are off, -inf is the k-th: what is tied with it is masked already.
        return logits.masked_fill(~_reaching(logits, kth, room, "first"), -torch.inf)


@attrs.frozen(eq=False)
class DeviceTopP:
    """
    :class:`~decodekit.processors.TopP` without sorting the vocabulary.

    After a top-k, the survivors' values, and how many tokens are tied with the last of them, are
    all that a nucleus depends on; their running sum is a product with a triangle of ones.
    Without one, the nucleus' edge is found by halving the range of the logits, a sum over the
    vocabulary each time.
    """

    host: TopP

    survivors: int | None
    """As many values as a top-k before it let through, ties with the last not counted."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask the tail of ``[batch, width, vocab]`` logits, which are not modified."""
        if self.survivors is None:
            edge, room = self._edge_by_halving(logits)
        else:
            edge, room = self._edge_among(descending(logits, self.survivors), logits)
        kept = logits >= edge if self.host.ties == "keep" else _reaching(logits, edge, room, self.host.ties)
        if isinstance(self.host.p, Tensor):
            # A row with p = 1 loses nothing, not even tokens whose weight rounds to 0.
            kept = kept | per_row("p", self.host.p >= 1, logits)
        return logits.masked_fill(~kept, -torch.inf)

    def _edge_among(self, values: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest logit that stays, and how many of those equal to it do, both ``[batch, width, 1]``."""
        minimum, last = self.host.min_tokens, values[..., -1:]
        above = values > last
        tied = _count(logits == last)

        weights = (values - _or_zero(values[..., :1])).exp()
        # All that are tied with the last count; the list holds some of them.
        lowest = tied * weights[..., -1:]
        greater = weights * above
        spared = self._spared(_sum(greater) + lowest)

        # From the smallest up, what each of the greater has below it and in itself.
        size = values.shape[-1]
        reached = greater @ torch.ones(size, size, device=values.device).tril() + lowest
        stays = above & ((reached > spared) | (torch.arange(size, device=values.device) < minimum))
        count = _count(stays)

        # Of the lowest, those stay that spared has no room for.
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
        # The likeliest stay in any case.
        lowered = edge.minimum(least)
        needed = self.host.min_tokens - _count(logits > lowered)
        return lowered, torch.where(lowered < edge, needed, room.maximum(needed))

    def _spared(self, total: Tensor) -> Tensor:
        return per_row("p", 1 - self.host.p, total) * total


def descending(logits: Tensor, k: int) -> Tensor:
    """
    The *k* largest of ``[batch, width, n]``, in descending order.

    By a top-k of two dimensions over pieces of at most :data:`~..lint.graph_rules.WIDEST_TOP_K`, again and
    again, until one piece is left.

    Args:
        logits: NaN counts as the largest.

        k: At most :data:`LARGEST_K`.

    Returns:
        ``[batch, width, k]``, filled up with ``-inf`` where there are fewer.
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
    """Where a logit is above *edge*, or equal to it and among the first or last *room* that are."""
    tied = logits == edge
    return (logits > edge) | (tied & (_preceding(tied, ties) < room))


def _preceding(tied: Tensor, ties: str) -> Tensor:
    """
    How many are tied at lower ids (of the *ties* ``"first"``) or higher ones (``"last"``).

    In two levels, in blocks and over blocks. Counts stay below 2^24, so float32 is exact.
    """
    vocab = tied.shape[-1]
    size = math.isqrt(vocab - 1) + 1
    blocks = -(-vocab // size)
    ones = pad(tied.float(), (0, blocks * size - vocab)).reshape(*tied.shape[:-1], blocks, size)
    within = ones @ _strict_triangle(size, ties, tied.device)
    before = ones.sum(dim=-1) @ _strict_triangle(blocks, ties, tied.device)
    return (within + before[..., None]).reshape(*tied.shape[:-1], blocks * size)[..., :vocab]


def _strict_triangle(size: int, ties: str, device: torch.device) -> Tensor:
    """``[size, size]``: what a row vector is multiplied with to sum what stands before, or after, each."""
    square = torch.ones(size, size, device=device)
    return square.triu(1) if ties == "first" else square.tril(-1)


def _sum(values: Tensor) -> Tensor:
    return values.sum(dim=-1, keepdim=True)


def _count(mask: Tensor) -> Tensor:
    return _sum(mask.float())


def _or_zero(value: Tensor) -> Tensor:
    """-inf minus itself would be NaN."""
    return torch.where(value > -torch.inf, value, 0)
