"""What the decoding loop feeds: a decoder's slots, or several decoders as one."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .feed_counts import FeedCounts
from .history import History
from .protocols import DecoderShape, Draft
from .scores import Scores

Tokens: TypeAlias = Sequence[int] | NDArray[np.int64]
"""The ids of one text."""


@attrs.define(eq=False)
class Fed:
    """The result of one feed. Treat as immutable (not frozen, for speed)."""

    raw: Scores
    """The logits, built on first access; valid until the next forward."""

    ready: list[bool]
    """Whether each row's requested columns have been scored."""

    all_ready: bool
    """Whether every row that asked for columns is ready."""

    chosen: Tensor | None = None
    """The ids that the device sampled, ``[rows, max(need)]``; None if it sampled none."""

    was_ahead: bool = False
    """Whether the forward was queued before this feed; then another one computes the logits again."""

    def are_ready(self, rows: Sequence[int]) -> bool:
        """Whether all of *rows* are ready."""
        return self.all_ready or all(self.ready[row] for row in rows)

    @property
    def logits(self) -> Tensor:
        """
        ``[rows, max(need), vocab]``, left-aligned: column *i* follows token ``length - need + i``.

        Undefined beyond a row's own need, and in rows that are not ready. Valid until the next forward.
        """
        return self.raw.logits


class TokenFeeder(Protocol):
    """
    Computes logits after the tokens of a history, whatever it takes.

    :class:`~.cache.slots.Slots` feed one decoder. A decoder that stands for several, such as two that are
    combined, offers a feeder of its own (:class:`~.optional_protocols.OffersFeeder`).
    """

    shape: DecoderShape
    tree_widths: tuple[int, ...]
    """Columns of the tree forwards; empty if there are none."""

    @property
    def row_widths(self) -> tuple[int, ...]:
        """Columns of forwards of one row; empty if there are none."""
        ...

    @property
    def skips_padding(self) -> bool:
        """Whether padding takes less time than tokens."""
        ...

    @property
    def copied(self) -> list[int]:
        """The tokens that each row was copied from others so far, rather than fed."""
        ...

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """To be held while logits are in use: the next forward invalidates them."""
        ...

    logits_in_use: bool
    """
    True while the current logits are in use; feeding then raises.

    Set to False in a ``finally``, not by a context manager: an interrupt on entering its exit would leave it.
    """

    @property
    def rows(self) -> int:
        """Rows of one forward, of all decoders together."""
        ...

    @property
    def counts(self) -> FeedCounts:
        """What was fed so far."""
        ...

    def feed(
        self,
        history: History,
        length: Tensor,
        need: Tensor,
        *,
        most: int | None = None,
        exact_width: bool = False,
        sample: bool = False,
    ) -> Fed:
        """Feed what is missing and score the last tokens, as :meth:`.cache.slots.Slots.feed`."""
        ...

    def feed_tree(self, history: History, length: Tensor, draft: Draft, active: Tensor) -> Tensor:
        """Score a draft tree, as :meth:`.cache.slots.Slots.feed_tree`."""
        ...

    def missing(self, history: History, length: Tensor) -> Tensor:
        """How many of each row's tokens are not fed yet, ``[rows]`` int64."""
        ...

    def overlap(self, ids: Tokens) -> list[int]:
        """How many leading *ids* each row of the decoder has been fed already."""
        ...

    def held(self) -> list[int]:
        """How many tokens each row of the decoder has been fed and holds."""
        ...

    def copy_rows(self, source: Sequence[int]) -> bool:
        """Make each row a copy of another, as :meth:`.cache.slots.Slots.copy_rows`; False if it cannot."""
        ...
