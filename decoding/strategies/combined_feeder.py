"""Feeding several decoders as one."""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from ..cache.feed_checks import check_source, checked_feed
from ..feed_counts import FeedCounts
from ..history import History
from ..optional_protocols import is_row_independent, reads_prompts
from ..protocols import DecoderShape, Draft
from ..scores import Scores
from ..token_feeder import Fed, TokenFeeder, Tokens
from .combinations import Combine
from .joined_lock import JoinedLock


@attrs.define(eq=False)
class CombinedFeeder:
    """
    Feeds the same tokens to several decoders, each through its own feeder, and combines their logits.

    What another user of one of the decoders overwrites is fed to that one again.
    """

    feeders: Sequence[TokenFeeder]
    shape: DecoderShape
    """What all of them have."""

    combine: Combine
    tree_widths: tuple[int, ...] = attrs.field(init=False)

    counts: FeedCounts = attrs.field(factory=FeedCounts, init=False)
    """
    Of all decoders: the most forwards of one of them, as of a prompt the one of the narrowest widths needs,
    and the sum of their columns, tokens and seconds.
    """

    @tree_widths.default
    def _trees_of_all(self) -> tuple[int, ...]:
        every = [one.tree_widths for one in self.feeders]
        most = min((max(widths, default=0) for widths in every), default=0)
        return tuple(sorted({width for widths in every for width in widths if width <= most}))

    @property
    def lock(self) -> JoinedLock:
        """Those of all decoders."""
        return JoinedLock(one.lock for one in self.feeders)

    @property
    def logits_in_use(self) -> bool:
        """See :class:`~..token_feeder.TokenFeeder`."""
        return any(one.logits_in_use for one in self.feeders)

    @logits_in_use.setter
    def logits_in_use(self, in_use: bool) -> None:
        for one in self.feeders:
            one.logits_in_use = in_use

    @property
    def rows(self) -> int:
        """Rows of one forward of each decoder."""
        return sum(one.rows for one in self.feeders)

    @property
    def row_widths(self) -> tuple[int, ...]:
        """Columns of forwards of one row of any decoder, if all have some."""
        every = [one.row_widths for one in self.feeders]
        return tuple(sorted({width for widths in every for width in widths})) if all(every) else ()

    @property
    def skips_padding(self) -> bool:
        """Whether padding takes less time than tokens in all decoders."""
        return all(one.skips_padding for one in self.feeders)

    @property
    def copied(self) -> list[int]:
        """The tokens that each row was copied in all decoders."""
        return self._least([one.copied for one in self.feeders])

    @property
    def row_independent(self) -> bool:
        """Whether requests may take any row."""
        return all(map(is_row_independent, self.feeders))

    @property
    def reads_prompts(self) -> bool:
        """See :class:`~..optional_protocols.ReadsPrompts`."""
        return any(map(reads_prompts, self.feeders))

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
        """
        Bring the caches of all decoders up to date; as :meth:`~..cache.slots.Slots.feed`.

        Raises:
            ValueError: As there; or the device is to sample.
        """
        if sample:
            raise ValueError("'sample' must be False: combined logits are computed on the host")
        checked_feed(history, length, need, self.shape.batch_size, self.shape.scored_width)
        before = [one.counts for one in self.feeders]
        every = [one.feed(history, length, need, most=most, exact_width=exact_width) for one in self.feeders]
        self._count(before)
        ready = [all(rows) for rows in zip(*(fed.ready for fed in every), strict=True)]
        raw = Scores(lambda: self.combine([fed.logits for fed in every]))
        return Fed(raw, ready, all(fed.all_ready for fed in every))

    def feed_tree(self, history: History, length: Tensor, draft: Draft, active: Tensor) -> Tensor:
        """As :meth:`~..cache.slots.Slots.feed_tree`: all decoders score the same tree."""
        before = [one.counts for one in self.feeders]
        every = [one.feed_tree(history, length, draft, active) for one in self.feeders]
        self._count(before)
        self.logits_in_use = True
        try:
            return self.combine(every)
        finally:
            self.logits_in_use = False

    def missing(self, history: History, length: Tensor) -> Tensor:
        """How many of each row's tokens the decoder that lacks most still lacks, ``[rows]`` int64."""
        return torch.stack([one.missing(history, length) for one in self.feeders]).amax(dim=0)

    def overlap(self, ids: Tokens) -> list[int]:
        """How many leading *ids* each row has been fed in all decoders."""
        return self._least([one.overlap(ids) for one in self.feeders])

    def held(self) -> list[int]:
        """How many tokens each row holds in all decoders."""
        return self._least([one.held() for one in self.feeders])

    def copy_rows(self, source: Sequence[int]) -> bool:
        """
        Make each row a copy of another, in all decoders that can; as :meth:`~..cache.slots.Slots.copy_rows`.

        Returns:
            Whether all of them can. :meth:`feed` feeds what the others lack.
        """
        n = check_source(source, self.shape.batch_size)
        # All of them, also after one that cannot.
        copied = [one.copy_rows([*source, *range(n, one.shape.batch_size)]) for one in self.feeders]
        return all(copied)

    def _least(self, every: Sequence[Sequence[int]]) -> list[int]:
        """The smallest number of each row; decoders may have rows that others do not have."""
        return [min(row) for row in zip(*every, strict=False)]

    def _count(self, before: Sequence[FeedCounts]) -> None:
        """Count what the feeders did since *before*."""
        every = [one.counts.since(then) for one, then in zip(self.feeders, before, strict=True)]
        self.counts = self.counts.plus(
            FeedCounts(
                forwards=max(one.forwards for one in every),
                columns=sum(one.columns for one in every),
                tokens=sum(one.tokens for one in every),
                row_columns=max(one.row_columns for one in every),
                row_tokens=max(one.row_tokens for one in every),
                row_seconds=sum(one.row_seconds for one in every),
            )
        )
