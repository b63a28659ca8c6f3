"""Feeding a guided decoder: prompts and negative prompts, side by side."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from ..cache.feed_checks import check_source, checked_feed
from ..feed_counts import FeedCounts
from ..history import History
from ..protocols import DecoderShape, Draft
from ..scores import Scores
from ..token_feeder import Fed, TokenFeeder, Tokens
from ..trees import parents_of
from .guidance import guide
from .negative_prompts import Ints, NegativePrompts


@attrs.define(eq=False)
class GuidedFeeder:
    """
    Feeds each row twice, after its prompt and after its negative prompt.

    Row *b* of the guided decoder is row *b* of :attr:`inner`, which holds the prompt and the new tokens, and
    row *n* + *b*, which holds the negative prompt and the same new tokens. One feed of :attr:`inner` brings
    both up to date, so rewinds, drafts and reused prefixes need nothing of their own.
    """

    inner: TokenFeeder
    shape: DecoderShape
    """Of the guided decoder: *n* rows."""

    scale: float
    negatives: NegativePrompts
    tree_widths: tuple[int, ...] = attrs.field(init=False)

    reads_prompts: bool = attrs.field(default=True, init=False)
    """See :class:`~..optional_protocols.ReadsPrompts`: new tokens follow the negative prompt too."""

    @tree_widths.default
    def _those_of_inner(self) -> tuple[int, ...]:
        return self.inner.tree_widths

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """See :class:`~..token_feeder.TokenFeeder`."""
        return self.inner.lock

    @property
    def logits_in_use(self) -> bool:
        """See :class:`~..token_feeder.TokenFeeder`."""
        return self.inner.logits_in_use

    @logits_in_use.setter
    def logits_in_use(self, in_use: bool) -> None:
        self.inner.logits_in_use = in_use

    @property
    def rows(self) -> int:
        """See :class:`~..token_feeder.TokenFeeder`."""
        return self.inner.rows

    @property
    def counts(self) -> FeedCounts:
        """What was fed so far, negative prompts included."""
        return self.inner.counts

    @property
    def row_widths(self) -> tuple[int, ...]:
        """See :class:`~..token_feeder.TokenFeeder`."""
        return self.inner.row_widths

    @property
    def skips_padding(self) -> bool:
        """See :class:`~..token_feeder.TokenFeeder`."""
        return self.inner.skips_padding

    @property
    def copied(self) -> list[int]:
        """The tokens that each row was copied so far, those of negative prompts left out."""
        return self.inner.copied[: self.shape.batch_size]

    @property
    def row_independent(self) -> bool:
        """Whether requests may take any row."""
        return self.negatives.row_independent

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
        Bring both sides of each row up to date; as :meth:`~..cache.slots.Slots.feed`.

        Raises:
            ValueError: As there; or a column within the prompt is to be scored, where the negative side has
                none; or the device is to sample.
        """
        if sample:
            raise ValueError("'sample' must be False: a guided decoder's logits are computed on the host")
        ends, wanted = checked_feed(history, length, need, self.shape.batch_size, self.shape.scored_width)
        _require_new(history.prompt.tolist(), ends, wanted)
        both, both_ends = self._both(history, ends, wanted)
        fed = self.inner.feed(both, both_ends, self._twice(need), most=most, exact_width=exact_width)
        rows, n = len(ends), self.shape.batch_size
        ready = [one and other for one, other in zip(fed.ready[:rows], fed.ready[n:], strict=True)]
        return Fed(Scores(lambda: self._guided(fed.logits, rows)), ready, fed.all_ready)

    def feed_tree(self, history: History, length: Tensor, draft: Draft, active: Tensor) -> Tensor:
        """As :meth:`~..cache.slots.Slots.feed_tree`: both sides score the same tree."""
        both, both_ends = self._both(history, length.tolist(), active.tolist())
        twice = Draft(self._twice(draft.ids, -1), parents=self._twice(parents_of(draft), -1))
        logits = self.inner.feed_tree(both, both_ends, twice, self._twice(active))
        return self._guided(logits, len(length))

    def missing(self, history: History, length: Tensor) -> Tensor:
        """
        How many tokens each row still lacks, on the side that lacks more; ``[rows]`` int64.

        All of a row that has no negative prompt: what is wrong with it is raised where the row is fed.
        """
        rows, n = len(length), self.shape.batch_size
        known = [self._has_lead(history, row) for row in range(rows)]
        missing = self.inner.missing(*self._both(history, length.tolist(), known))
        lacking = missing[:rows].maximum(missing[n:]).minimum(length)
        return torch.where(torch.tensor(known), lacking, length)

    def overlap(self, ids: Tokens) -> list[int]:
        """How many leading *ids*, a prompt, each row need not be fed, by the side that lacks more."""
        n, prompt = self.shape.batch_size, np.array(ids, dtype=np.int64)
        held = self.inner.overlap(ids)
        for row in range(n):
            negative = self.negatives.of(row, prompt).tolist()
            lacking = len(negative) - self.inner.overlap(negative)[n + row]
            held[row] = max(0, min(held[row], len(ids) - lacking))
        return held[:n]

    def held(self) -> list[int]:
        """How many tokens each row holds after its prompt's beginning."""
        return self.inner.held()[: self.shape.batch_size]

    def copy_rows(self, source: Sequence[int]) -> bool:
        """Make both sides of each row a copy of another's, as :meth:`~..cache.slots.Slots.copy_rows`."""
        n = check_source(source, self.shape.batch_size)
        between = range(2 * n, self.inner.shape.batch_size)
        return self.inner.copy_rows([*source, *(n + row for row in source), *between])

    def _lead(self, history: History, row: int) -> Ints:
        """The negative prompt of *row*."""
        return self.negatives.of(row, history.ids.numpy()[row, 0, : int(history.prompt[row])])

    def _has_lead(self, history: History, row: int) -> bool:
        try:
            self._lead(history, row)
        except Exception:
            # Raised again where the row is fed, if it is.
            return False
        return True

    def _both(self, history: History, ends: Sequence[int], active: Sequence[Any]) -> tuple[History, Tensor]:
        """
        The tokens of both sides, of width 1, and how many each row has; rows between them have none.

        The negative side of a row that is not *active*, and so not fed, begins with some token.
        """
        n, tokens, prompts = self.shape.batch_size, history.ids.numpy()[:, 0], history.prompt.tolist()
        sides = [tokens[row, :end] for row, end in enumerate(ends)]
        sides += [np.empty(0, dtype=np.int64)] * (n - len(ends))
        lead = [self._lead(history, row) if on else tokens[row, :1] for row, on in enumerate(active)]
        for row, (negative, end) in enumerate(zip(lead, ends, strict=True)):
            sides.append(np.concatenate([negative, tokens[row, prompts[row] : end]]))
        length = torch.tensor([len(side) for side in sides])
        ids = np.zeros((len(sides), 1, max(map(len, sides))), dtype=np.int64)
        for row, side in enumerate(sides):
            ids[row, 0, : len(side)] = side
        prompt = self._twice(history.prompt, 1)
        prompt[n:] = torch.tensor([len(negative) for negative in lead])
        streams = self._twice(history.random_stream)
        return History(torch.from_numpy(ids), length[:, None], prompt, streams), length

    def _twice(self, values: Tensor, fill: int = 0) -> Tensor:
        """The *values* of each row for both sides, with *fill* in the rows between them."""
        between = values.new_full((self.shape.batch_size - len(values), *values.shape[1:]), fill)
        return torch.cat([values, between, values])

    def _guided(self, logits: Tensor, rows: int) -> Tensor:
        return guide(logits[:rows], logits[self.shape.batch_size :], self.scale)


def _require_new(prompts: Sequence[int], ends: Sequence[int], wanted: Sequence[int]) -> None:
    """Refuse columns within the prompts, whose tokens the negative side does not have."""
    for row, (prompt, end, want) in enumerate(zip(prompts, ends, wanted, strict=True)):
        if want and end - want + 1 < prompt:
            raise ValueError(
                "a guided decoder scores new tokens only, which both sides have: got a column after "
                f"{end - want + 1} of the {prompt} tokens of the prompt of row {row}"
            )
