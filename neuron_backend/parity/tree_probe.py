"""
The comparison of trees with chains that every construction makes.

What a tree needs beyond a chain is that a column may lie in a slot that is not its position's. A
model for which that makes a difference is refused by name.
"""

from collections.abc import Iterator
from typing import Protocol

import attrs
import torch
from torch import Tensor

from ...decoding.cache.slots import Slots
from ...decoding.protocols import Decoder, ScoresTrees
from ..models.unsupported import UnsupportedArchitecture

_BRANCHES = 3
_SHORTEST = 32
_MARGIN = 8


class TreeDecoder(Decoder, ScoresTrees, Protocol):
    """A decoder that scores trees."""


@attrs.frozen(eq=False)
class TreeProbe:
    """Ragged rows, longer than any attention window that closes, and a tree of branches upon each."""

    ids: Tensor
    """``[batch, max_length]``; what lies behind a row's length is written over."""

    length: Tensor
    draft_tokens: Tensor
    """``[batch, n]``: the branches, interleaved."""

    branches: int

    @classmethod
    def of(cls, decoder: TreeDecoder, width: int, span: int) -> "TreeProbe":
        """Random tokens for trees of *width*; *span* is the longest attention window, 0 for none."""
        shape, generator = decoder.shape, torch.Generator().manual_seed(0)
        room = shape.max_length - 1
        count = width - 1 if room else 0
        # As many branches as it takes for none to be longer than there are positions.
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
        """What follows the rows, ``[batch, 1, vocab]``."""
        return slots.feed(self.ids, self.length, torch.ones_like(self.length)).clone()

    def tree(self, slots: Slots) -> Tensor:
        """What follows the rows and each guess, by one forward: ``[batch, 1 + n, vocab]``."""
        parents = (torch.arange(self.draft_tokens.shape[1]) - self.branches).clamp(min=-1)
        everyone = torch.ones_like(self.length, dtype=torch.bool)
        return slots.feed_tree(
            self.ids, self.length, self.draft_tokens, parents.expand_as(self.draft_tokens), everyone
        ).clone()

    def columns(self, branch: int) -> list[int]:
        """The draft_tokens of one branch."""
        return list(range(branch, self.draft_tokens.shape[1], self.branches))

    def chain(self, slots: Slots, branch: int, count: int) -> Tensor:
        """What follows the last *count* draft_tokens of one branch, fed as a chain: ``[batch, count, vocab]``."""
        draft_tokens = self.draft_tokens[:, self.columns(branch)]
        ids, rows = self.ids.clone(), torch.arange(len(self.ids))[:, None]
        ids[rows, self.length[:, None] + torch.arange(draft_tokens.shape[1])] = draft_tokens
        need = torch.full_like(self.length, count)
        return slots.feed(ids, self.length + draft_tokens.shape[1], need).clone()

    def pairs(self, decoder: TreeDecoder) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits that have to be equal."""
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
    Compare every tree width with chains of the same *decoder*. The cache holds other tokens afterwards.

    Args:
        decoder: Whose chains are right.

        span: The longest attention window, 0 for none.

        tolerance: The largest difference allowed, relative to the largest logit.

        whose: What to call it in the error.

        architecture: Of its model.

    Raises:
        UnsupportedArchitecture: It failed, or the logits differ.
    """
    for width in decoder.tree_widths:
        try:
            pairs = list(TreeProbe.of(decoder, width, span).pairs(decoder))
        except Exception as error:
            raise UnsupportedArchitecture(
                architecture, f"{whose} failed over a tree of width {width}: {error!r}"
            ) from error
        off = max(_largest(found - expected) for found, expected in pairs)
        allowed = tolerance * max(_largest(expected) for _, expected in pairs)
        # Written so that a NaN refuses as well.
        if not off <= allowed:
            raise UnsupportedArchitecture(
                architecture,
                f"{whose} scores a tree of width {width} otherwise than its branches, by {off:.3g}, "
                f"more than rounding explains ({allowed:.3g})",
            )


def _largest(logits: Tensor) -> float:
    return float(logits.abs().max())
