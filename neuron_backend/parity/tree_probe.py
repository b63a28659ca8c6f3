"""
Comparison of trees with token sequences, made whenever a decoder that scores trees is constructed.

In a tree, a column may be in a slot that is not that of its position. A model for which that makes a
difference is refused by name.
"""

from collections.abc import Iterator
from typing import Protocol

import attrs
import torch
from torch import Tensor

from ...decoding.cache.slots import Slots
from ...decoding.history import History
from ...decoding.protocols import Decoder, Draft, ScoresTrees
from ..models.unsupported import UnsupportedArchitecture
from .magnitude import magnitude

_BRANCHES = 3
_SHORTEST = 32
_MARGIN = 8


class TreeDecoder(Decoder, ScoresTrees, Protocol):
    """A decoder that scores trees."""


@attrs.frozen(eq=False)
class TreeProbe:
    """Rows of different lengths, longer than any window smaller than max_length, each with a tree."""

    ids: Tensor
    """``[batch, max_length]``; tokens after a row's length are overwritten."""

    length: Tensor
    draft_tokens: Tensor
    """``[batch, n]``: the tokens of the branches, interleaved."""

    branches: int

    @classmethod
    def of(cls, decoder: TreeDecoder, width: int, span: int) -> "TreeProbe":
        """Random tokens for trees of *width*; *span* is the longest attention window, or 0."""
        shape, generator = decoder.shape, torch.Generator().manual_seed(0)
        room = shape.max_length - 1
        count = width - 1 if room else 0
        # Enough branches that none is longer than the available positions.
        branches = max(_BRANCHES, -(-count // max(room, 1)))
        closing = span if span < shape.max_length else 0
        longest = min(shape.max_length - -(-count // branches), max(closing, _SHORTEST) + _MARGIN)
        return cls(
            ids=torch.randint(shape.vocab_size, (shape.batch_size, shape.max_length), generator=generator),
            length=(longest - torch.arange(shape.batch_size) % _BRANCHES).clamp(min=1),
            draft_tokens=torch.randint(shape.vocab_size, (shape.batch_size, count), generator=generator),
            branches=branches,
        )

    def prefix(self, slots: Slots) -> Tensor:
        """Logits after the rows, ``[batch, 1, vocab]``."""
        need = torch.ones_like(self.length)
        return slots.feed(self._history(self.ids), self.length, need).logits.clone()

    def tree(self, slots: Slots) -> Tensor:
        """Logits after the rows and each draft token, by one forward: ``[batch, 1 + n, vocab]``."""
        parents = (torch.arange(self.draft_tokens.shape[1]) - self.branches).clamp(min=-1)
        all_rows = torch.ones_like(self.length, dtype=torch.bool)
        tree = Draft(self.draft_tokens, parents=parents.expand_as(self.draft_tokens))
        return slots.feed_tree(self._history(self.ids), self.length, tree, all_rows).clone()

    def _history(self, ids: Tensor) -> History:
        return History(ids[:, None], self.length[:, None], self.length, torch.zeros_like(self.length))

    def columns(self, branch: int) -> list[int]:
        """Indices of one branch's draft tokens."""
        return list(range(branch, self.draft_tokens.shape[1], self.branches))

    def chain(self, slots: Slots, branch: int, count: int) -> Tensor:
        """Logits after a branch's last *count* draft tokens, fed in sequence: ``[batch, count, vocab]``."""
        draft_tokens = self.draft_tokens[:, self.columns(branch)]
        ids, rows = self.ids.clone(), torch.arange(len(self.ids))[:, None]
        ids[rows, self.length[:, None] + torch.arange(draft_tokens.shape[1])] = draft_tokens
        need = torch.full_like(self.length, count)
        return slots.feed(self._history(ids), self.length + draft_tokens.shape[1], need).logits.clone()

    def pairs(self, decoder: TreeDecoder) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of logits that must be equal."""
        slots = Slots(decoder)
        prefix, tree = self.prefix(slots), self.tree(slots)
        yield tree[:, :1], prefix
        branches = range(min(self.branches, self.draft_tokens.shape[1]))
        # One column more than the tree has left in the cache.
        upon_tree = [self.chain(slots, branch, 1) for branch in branches[:1]]
        slots.forget()
        for branch in branches:
            last = self.columns(branch)[-decoder.shape.scored_width :]
            chain = self.chain(slots, branch, len(last))
            yield tree[:, [1 + column for column in last]], chain
            yield from ((found, chain[:, -1:]) for found in upon_tree[branch : branch + 1])


def check_trees(decoder: TreeDecoder, span: int, tolerance: float, whose: str, architecture: str) -> None:
    """
    Compare every tree width with token sequences of the same *decoder*. The cache is overwritten.

    Args:
        decoder: A decoder whose forwards over sequences have been compared already.

        span: The longest attention window; 0 for none.

        tolerance: Largest difference allowed, relative to the largest logit.

        whose: Name of the decoder in error messages.

        architecture: Architecture of its model.

    Raises:
        UnsupportedArchitecture: A forward failed, or the logits differ.
    """
    for width in decoder.tree_widths:
        try:
            pairs = list(TreeProbe.of(decoder, width, span).pairs(decoder))
        except Exception as error:
            raise UnsupportedArchitecture(
                architecture, f"{whose} failed over a tree of width {width}: {error!r}"
            ) from error
        off = magnitude(*(found - expected for found, expected in pairs))
        allowed = tolerance * magnitude(*(expected for _, expected in pairs))
        # Also true for NaN.
        if not off <= allowed:
            raise UnsupportedArchitecture(
                architecture,
                f"{whose} scores a tree of width {width} otherwise than its branches, by {off:.3g}, "
                f"more than rounding explains ({allowed:.3g})",
            )
