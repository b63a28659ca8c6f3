"""Overlap of host and device: the next forward is queued before the last sample is read."""

from collections.abc import Sequence
from typing import cast

import attrs
import torch
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

    def covered(self, history: History, rows: Sequence[int], length: Sequence[int]) -> list[int]:
        """Those of *rows* whose next token it samples; none if one was fed another token than it has now."""
        tokens = history.ids
        found = [row for row in rows if row in self.rows]
        same = all(
            length[row] == self.length[row] and tokens[row, 0, length[row] - 1] == self.fed[row]
            for row in found
        )
        return found if same else []


def may_run_ahead(run: Run) -> bool:
    """Whether no part of *run* needs the logits of a step before the next forward."""
    return run.on_device and run.drafting is None and run.gap is None and run.recorder is None


@attrs.define(eq=False)
class Overlap:
    """
    What feeds a table of requests that :func:`may_run_ahead`, if their decoder can run one forward ahead.

    While the device computes forward n + 1, the host reads sample n, tests the stop conditions and delivers
    the events. The forward after a row's last token is discarded: its slots are overwritten by position.

    Only one forward is ahead, so a run wastes at most one, after its last token. Rows that it does not feed,
    of a request that joins or goes on, wait until it is read; then one forward feeds all. A discarded forward
    is not counted in the statistics, which are those of a run without overlap.
    """

    slots: Slots

    _ahead: _Queued | None = attrs.field(default=None, init=False)
    """The forward whose sample has not been read."""

    @classmethod
    def of(cls, feeder: TokenFeeder) -> "Overlap | None":
        """The overlap of what *feeder* feeds; None if its decoder cannot run ahead."""
        return cls(feeder) if isinstance(feeder, Slots) and feeder.may_queue else None

    def forget(self, rows: Sequence[int]) -> None:
        """Let the forward that is ahead sample nothing for *rows*, which are another request's now."""
        if self._ahead is not None:
            self.slots.recorded.forget_queued(
                self._ahead.length, [row for row in rows if row in self._ahead.rows]
            )
            self._ahead = attrs.evolve(self._ahead, rows=[row for row in self._ahead.rows if row not in rows])

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
        self.slots.require_returned()
        # Taken before anything else, so that nothing of it is left after an exception.
        ahead, self._ahead = self._ahead, None
        if self._applies(exact_width, sample):
            rows, ends = [row for row, count in enumerate(need.tolist()) if count], length.tolist()
            missing = self.slots.missing(history, length).tolist()
            if ahead is not None and (covered := ahead.covered(history, rows, ends)):
                # Another user of the decoder may have overwritten slots since.
                go_on = covered == rows and all(missing[row] == 0 for row in rows)
                return self._fed(history, length, need, covered, ahead, go_on)
            if all(missing[row] <= 1 for row in rows):
                return self._fed(history, length, need, rows, self._first(history, rows, ends), go_on=True)
        return self.slots.feed(history, length, need, most=most, exact_width=exact_width, sample=sample)

    def _fed(
        self,
        history: History,
        length: Tensor,
        need: Tensor,
        rows: Sequence[int],
        ahead: _Queued,
        go_on: bool,
    ) -> Fed:
        """The samples of *ahead* for *rows*; if it is to *go_on*, with another forward queued after it."""
        chosen = self._read(history, rows, ahead, go_on)
        of_rows = torch.zeros_like(need)
        of_rows[rows] = need[rows]
        raw = Scores(lambda: self._scored_again(history, length, of_rows))
        ready, all_ready = (of_rows > 0).tolist(), torch.equal(of_rows, need)
        return Fed(raw, ready, all_ready, chosen[: len(need)], was_ahead=True)

    def _applies(self, exact_width: bool, sample: bool) -> bool:
        decoder = cast(QueuesForwards, self.slots.decoder)
        return sample and not exact_width and decoder.async_mode

    def _first(self, history: History, rows: Sequence[int], length: Sequence[int]) -> _Queued:
        """Queue a forward of tokens that the host has."""
        fed = [int(history.ids[row, 0, end - 1]) for row, end in enumerate(length)]
        sample = self.slots.recorded.queue(history, length, rows)
        self.slots.recorded.record_queued(length, rows, fed)
        return _Queued(rows, length, fed, sample)

    def _read(self, history: History, rows: Sequence[int], ahead: _Queued, go_on: bool) -> Tensor:
        """The ids of *ahead*, read once the forward after it has been queued, if it can be."""
        length = [end + (row in rows) for row, end in enumerate(ahead.length)]
        # A row at the last position ends with this token.
        going_on = [row for row in rows if length[row] <= self.slots.shape.max_length]
        following = None
        if go_on and going_on:
            following = self.slots.recorded.queue(history, length, going_on, ahead.sample)
        try:
            chosen = self.slots.recorded.read_queued(ahead.sample, rows)
        except BaseException:
            self.slots.recorded.forget_queued(ahead.length, ahead.rows)
            raise
        if following is not None:
            fed = chosen[:, 0].tolist()
            self.slots.recorded.record_queued(length, going_on, fed)
            self._ahead = _Queued(going_on, length, fed, following)
        return chosen

    def _scored_again(self, history: History, length: Tensor, need: Tensor) -> Tensor:
        """The logits of a step, whose forward was followed by another: those of the same forward again."""
        in_use, self.slots.logits_in_use = self.slots.logits_in_use, False
        try:
            return self.slots.feed(history, length, need, sample=True).logits
        finally:
            self.slots.logits_in_use = in_use
