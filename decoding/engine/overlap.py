"""Overlap of host and device: the next forward is queued before the last sample is read."""

from collections.abc import Sequence
from typing import cast

import attrs
from torch import Tensor

from ..cache.slots import Slots
from ..history import History
from ..optional_protocols import QueuedSample, QueuesForwards
from ..scores import Scores
from ..token_feeder import Fed, TokenFeeder
from .run import Run


@attrs.frozen(eq=False)
class _Queued:
    """A forward of one column that has been queued."""

    rows: Sequence[int]
    length: Sequence[int]
    """Tokens of each row, the fed one included."""

    fed: Sequence[int]
    """The token that each row was fed."""

    sample: QueuedSample

    def follows(self, history: History, rows: Sequence[int], length: Sequence[int]) -> bool:
        """Whether it samples the next token of *rows*, which have *length* tokens."""
        tokens = history.ids
        return set(rows) <= set(self.rows) and all(
            length[row] == self.length[row] and tokens[row, 0, length[row] - 1] == self.fed[row]
            for row in rows
        )


def may_run_ahead(run: Run) -> bool:
    """Whether no part of *run* needs the logits of a step before the next forward."""
    return run.on_device and run.drafting is None and run.gap is None and run.recorder is None


@attrs.define(eq=False)
class Overlap:
    """
    What feeds a table of requests that :func:`may_run_ahead`, if their decoder can run one forward ahead.

    While the device computes forward n + 1, the host reads sample n, tests the stop conditions and delivers
    the events. The forward after a row's last token is discarded: its slots are overwritten by position.

    Only one forward is ahead, so at most one is wasted: after the last token of a run, and where a request
    joins, whose rows it does not feed. A discarded forward is not counted in the statistics, which are those
    of a run without overlap.
    """

    slots: Slots

    _ahead: _Queued | None = attrs.field(default=None, init=False)
    """The forward whose sample has not been read."""

    reads_scores: bool = attrs.field(default=False, init=False)
    """Whether scores were read since this was last set to False, which takes a second forward."""

    @classmethod
    def of(cls, feeder: TokenFeeder) -> "Overlap | None":
        """The overlap of what *feeder* feeds; None if its decoder cannot run ahead."""
        return cls(feeder) if isinstance(feeder, Slots) and feeder.may_queue else None

    def forget(self) -> None:
        """Discard the forward that is ahead: its rows may be another request's from now on."""
        self._ahead = None

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
        """As :meth:`~..cache.slots.Slots.feed`; the ids may come from a forward that was queued before."""
        # Taken first, so that nothing of it is left after an exception.
        ahead, self._ahead = self._ahead, None
        rows, ends = [row for row, count in enumerate(need.tolist()) if count], length.tolist()
        missing = self.slots.missing(history, length).tolist() if self._applies(exact_width, sample) else []
        if missing and ahead is not None and ahead.follows(history, rows, ends):
            # Another user of the decoder may have overwritten slots since.
            cached = all(missing[row] == 0 for row in rows)
        elif missing and all(missing[row] <= 1 for row in rows):
            ahead, cached = self._first(history, rows, ends), True
        else:
            return self.slots.feed(history, length, need, most=most, exact_width=exact_width, sample=sample)
        chosen = self._read(history, rows, ahead, cached)
        raw = Scores(lambda: self._scored_again(history, length, need))
        return Fed(raw, [count > 0 for count in need.tolist()], all_ready=True, chosen=chosen[: len(ends)])

    def _applies(self, exact_width: bool, sample: bool) -> bool:
        decoder = cast(QueuesForwards, self.slots.decoder)
        return sample and not exact_width and decoder.async_mode

    def _first(self, history: History, rows: Sequence[int], length: Sequence[int]) -> _Queued:
        """Queue a forward of tokens that the host has."""
        fed = [int(history.ids[row, 0, end - 1]) for row, end in enumerate(length)]
        sample = self.slots.queue(history, length, rows)
        self.slots.record_queued(length, rows, fed)
        return _Queued(rows, length, fed, sample)

    def _read(self, history: History, rows: Sequence[int], ahead: _Queued, cached: bool) -> Tensor:
        """The ids of *ahead*, read once the forward after it has been queued, if it can be."""
        length = [end + (row in rows) for row, end in enumerate(ahead.length)]
        # A row at the last position ends with this token.
        going_on = [row for row in rows if length[row] <= self.slots.shape.max_length]
        following = None
        if cached and going_on:
            following = self.slots.queue(history, length, going_on, ahead.sample)
        try:
            chosen = self.slots.read_queued(ahead.sample, rows)
        except BaseException:
            self.slots.forget_queued(ahead.length, ahead.rows)
            raise
        if following is not None:
            fed = chosen[:, 0].tolist()
            self.slots.record_queued(length, going_on, fed)
            self._ahead = _Queued(going_on, length, fed, following)
        return chosen

    def _scored_again(self, history: History, length: Tensor, need: Tensor) -> Tensor:
        """The logits of a step, whose forward was followed by another: those of the same forward again."""
        self.reads_scores = True
        in_use, self.slots.logits_in_use = self.slots.logits_in_use, False
        try:
            return self.slots.feed(history, length, need, sample=True).logits
        finally:
            self.slots.logits_in_use = in_use
