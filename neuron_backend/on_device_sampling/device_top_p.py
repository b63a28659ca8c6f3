"""
Device variant of TopP. It follows the host's definition, ties included.

Probabilities are summed in float32, exactly on the host: a token at the boundary may differ if two sums
differ by rounding.
"""

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ...processors import TopP
from ...processors.parameter import is_scalar, per_row
from .device_ranking import descending, reaching
from .device_refusal import check_size

_RANGE = 104.0
"""Logits this far below the largest have weight exp(-104), which is 0 in float32."""

_HALVINGS = 34
"""Bisection steps, down to 6e-9: closer logits are considered tied up to rounding."""


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

    @classmethod
    def of(cls, host: TopP, survivors: int | None) -> "DeviceTopP | None":
        """See :class:`~.device_stages.DeviceStage`."""
        if is_scalar(host.p, 1.0):
            return None
        check_size(host, "min_tokens", host.min_tokens)
        return cls(host, survivors)

    def survivors_after(self, before: int | None) -> int | None:
        """See :class:`~.device_stages.DeviceStage`."""
        return before

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask the tail of ``[batch, width, vocab]`` logits, which are not modified."""
        if self.survivors is None:
            edge, room = self._edge_by_halving(logits)
        else:
            edge, room = self._edge_among(descending(logits, self.survivors), logits)
        kept = logits >= edge if self.host.ties == "keep" else reaching(logits, edge, room, self.host.ties)
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
        reached = greater @ greater.new_ones(size, size).tril() + lowest
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
        # Of large logits, a difference of _RANGE would be rounded off.
        relative = logits - best
        weights = relative.exp()
        spared = self._spared(_sum(weights))

        high = torch.zeros_like(best)
        low = high - _RANGE
        for _ in range(_HALVINGS):
            middle = (low + high) * 0.5
            falls = _sum(torch.where(relative <= middle, weights, 0)) <= spared
            low, high = torch.where(falls, middle, low), torch.where(falls, high, middle)

        edge = torch.where(relative > low, logits, torch.inf).amin(dim=-1, keepdim=True)
        below = _sum(torch.where(logits < edge, weights, 0))
        room = _count(logits == edge) - ((spared - below) / (edge - best).exp()).floor()
        # The min_tokens most likely tokens are always kept.
        lowered = edge.minimum(least)
        needed = self.host.min_tokens - _count(logits > lowered)
        return lowered, torch.where(lowered < edge, needed, room.maximum(needed))

    def _spared(self, total: Tensor) -> Tensor:
        return per_row("p", 1 - self.host.p, total) * total


def _sum(values: Tensor) -> Tensor:
    return values.sum(dim=-1, keepdim=True)


def _count(mask: Tensor) -> Tensor:
    return _sum(mask.float())


def _or_zero(value: Tensor) -> Tensor:
    """*value*, or 0 for -inf, since -inf - -inf is NaN."""
    return torch.where(value > -torch.inf, value, 0)
