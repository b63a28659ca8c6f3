"""The decoding loop: draft, feed, and let each request accept its rows."""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import numpy as np
import torch
from torch import Tensor

from ..history import History
from ..protocols import Draft
from ..results.events import StepOutput
from ..results.timers import Timers
from ..scores import Scores
from ..token_feeder import Fed, TokenFeeder
from .active_request import ActiveRequest
from .asking import ask
from .merged_sampling import sample_together
from .overlap import Overlap
from .proposal import Proposal
from .run import Accepted, Run
from .step_feed import feed_step
from .step_outcome import reports
from .step_plan import StepPlan, plan_step

StepResult: TypeAlias = tuple[ActiveRequest, list[StepOutput], Callable[[], None]]
"""
A request, the outputs of its rows, and a function that reports the step to its draft length policy.

The function is called after the outputs were delivered, so that an exception in it loses nothing.
"""

Failed: TypeAlias = Callable[[ActiveRequest, Exception], None]
"""Called with a request and the exception of one of its parts; may raise it, which ends the step."""


def raise_it(request: ActiveRequest, error: Exception) -> None:
    """Raise the exception of a part, which ends the step; the step may be repeated."""
    raise error


@attrs.define(eq=False)
class DecodeLoop:
    """
    The decoding loop: a table of rows in which requests decode side by side.

    A call to a generator is a table over its own history with one request; a batcher is a table over
    all rows of the decoder. Each request has parts of its own, and its text is the one it has alone.

    A step asks each drafter once, over the whole table, feeds all rows in one call, and lets each
    request accept its own. Plain decoding is the same with an empty draft.
    """

    feeder: TokenFeeder

    history: History
    """
    The table, width 1. Its ids are written to; they have room for one token more than the decoder has
    positions, since the last one need not be fed.
    """

    timers: Timers
    """Count the forwards, and the time of drafts and forwards."""

    exact_width: bool = False
    """Whether every token goes through one program."""

    failed: Failed = raise_it
    """
    Called when a part of a request raises. If it returns, the request takes part in no further step, and
    the others continue.
    """

    requests: list[ActiveRequest] = attrs.field(factory=list, init=False)
    """In the order of joining."""

    _length: list[int] = attrs.field(init=False, repr=False)
    """Tokens of each row."""

    _plan: StepPlan | None = attrs.field(default=None, init=False, repr=False)
    """The plan of the next step; None if it must be made again."""

    was_ahead: bool = attrs.field(default=False, init=False)
    """Whether the forward of the newest step was queued in the step before."""

    _overlap: Overlap | None = attrs.field(init=False, repr=False)
    """Feeds requests that run ahead, if the decoder can."""

    _without_gradients: torch.no_grad = attrs.field(factory=torch.no_grad, init=False, repr=False)

    @_overlap.default
    def _overlap_of_the_feeder(self) -> Overlap | None:
        return Overlap.of(self.feeder)

    def __attrs_post_init__(self) -> None:
        """Copy lengths to a list, which is faster than a tensor for a few numbers."""
        self._length = self.history.length[:, 0].tolist()

    @classmethod
    def empty(
        cls, feeder: TokenFeeder, timers: Timers, exact_width: bool = False, failed: Failed = raise_it
    ) -> "DecodeLoop":
        """A table over all rows of the decoder, all of them free."""
        shape = feeder.shape
        # Even if the caller is in inference mode: later steps write to these tensors outside of it.
        with torch.inference_mode(False):
            # A free row has one token, so that parts get a valid history.
            one = torch.ones(shape.batch_size, dtype=torch.int64)
            ids = torch.zeros(shape.batch_size, 1, shape.max_length + 1, dtype=torch.int64)
            history = History(ids, one[:, None], one, torch.zeros_like(one))
        return cls(feeder, history, timers, exact_width, failed)

    def free(self) -> list[int]:
        """The rows that no request has, ascending."""
        taken = {row for request in self.requests for row in range(request.rows.start, request.rows.stop)}
        return [row for row in range(len(self._length)) if row not in taken]

    def join(self, run: Run, history: History, first: int) -> ActiveRequest:
        """
        Give a request the rows from *first* on.

        Args:
            run: Its parts.

            history: Its prompts, width 1; copied, unless it is the table itself.

            first: The first of as many free rows as it has prompts.

        Raises:
            ValueError: The rows are not free, a prompt is too long, or a part of *run* cannot share a table.
        """
        rows, free = slice(first, first + len(history.length)), self.free()
        if not set(range(rows.start, rows.stop)) <= set(free):
            raise ValueError(f"'first' must begin {len(history.length)} of the free rows {free}: got {first}")
        if history is not self.history:
            run.require_shareable()
            longest, most = int(history.length.max()), self.feeder.shape.max_length
            if longest > most:
                raise ValueError(f"'history' must have at most {most} tokens in a row: got {longest}")
            self._write(rows, history)
        if self._overlap is not None:
            # Another thread may be feeding the decoder.
            with self.feeder.lock:
                self._overlap.forget(range(rows.start, rows.stop))
        request = ActiveRequest(run, rows)
        self.requests.append(request)
        self._plan = None
        return request

    def leave(self, request: ActiveRequest) -> None:
        """Free the rows of *request*, whether or not it has ended."""
        self.requests.remove(request)
        self._plan = None

    def pause(self, request: ActiveRequest, paused: bool = True) -> None:
        """Leave *request* out of the following steps, or take it back in if *paused* is False."""
        request.paused = paused
        self._plan = None

    def missing(self) -> list[int]:
        """How many of each row's tokens the decoder's cache lacks."""
        with self.feeder.lock:
            return self.feeder.missing(self.history, torch.tensor(self._length)).tolist()

    def step(self, most: int | None = None, drafts: bool = True) -> list[StepResult]:
        """
        Advance the requests by one step.

        An exception of a part leaves the request as it was, and the table if :attr:`failed` raises it.

        Args:
            most: Bounds the columns of the forward, as in :meth:`~..cache.slots.Slots.feed`: a long
                prompt is then fed over several steps, while other rows decode. None feeds everything.

            drafts: Whether drafters are asked.

        Returns:
            The requests that accepted a step: those whose active rows were all scored.
        """
        plan = self._plan
        if plan is None:
            plan = self._plan = plan_step(
                self.requests, len(self._length), self.feeder, self._overlap, self.exact_width
            )
        if not plan.requests:
            return []
        # A new array each step, since a part may keep a reference to it.
        now = self.history.at(torch.from_numpy(np.array(self._length)[:, None]))
        proposals: list[Proposal | None] | None = None
        clock = None
        if drafts and plan.may_draft:
            clock = self.timers.step_clock()
            proposals = ask(plan, now, self.timers, most, self._fail)
        # The logits of a step are valid until the next forward by any user.
        waiting_since = time.perf_counter()
        # Not acquire() and release(): an interrupt may occur between acquire() and try.
        with self.feeder.lock, self._without_gradients:
            if clock is not None:
                clock.leave_out(time.perf_counter() - waiting_since)
            before = self.feeder.counts
            accepted = self._scored(plan, proposals, now, most)
            if clock is not None:
                clock.leave_out(self.feeder.counts.since(before).row_seconds)
        return self._advanced(plan, proposals, accepted, {} if clock is None else clock.read())

    def _write(self, rows: slice, history: History) -> None:
        """Copy the prompts of a request into the table."""
        reach = int(history.length.max())
        self.history.ids[rows, :, :reach] = history.ids[:, :, :reach]
        prompt, random_stream = self.history.prompt.clone(), self.history.random_stream.clone()
        prompt[rows], random_stream[rows] = history.prompt, history.random_stream
        self.history = History(self.history.ids, self.history.length, prompt, random_stream)
        self._length[rows] = history.length[:, 0].tolist()

    def _scored(
        self,
        plan: StepPlan,
        proposals: Sequence[Proposal | None] | None,
        now: History,
        most: int | None,
    ) -> list[Accepted | None]:
        """Feed the active rows; what each request accepts, None if its rows are not scored or it failed."""
        requests = plan.requests
        drafts = (
            [request.empty_draft for request in requests]
            if proposals is None
            else [
                request.empty_draft if one is None else one.draft
                for request, one in zip(requests, proposals, strict=True)
            ]
        )
        draft = drafts[0] if plan.alone else _side_by_side(requests, drafts, len(now.length))
        sample = plan.on_device and all(
            request.run.samples_on_device(own) for request, own in zip(requests, drafts, strict=True)
        )
        seen, fed = feed_step(
            plan,
            self.feeder,
            self.timers,
            now,
            draft,
            most=most,
            exact_width=self.exact_width,
            sample=sample,
        )
        self.was_ahead = fed.was_ahead
        self.feeder.logits_in_use = True
        try:
            together = plan.merged and fed.chosen is None
            chosen = self._sampled_together(plan, drafts, seen, fed) if together else {}
            return [
                self._accepted(request, own, seen, now, fed, plan.alone, chosen.get(id(request)))
                if not request.failed and fed.are_ready(request.table_rows())
                else None
                for request, own in zip(requests, drafts, strict=True)
            ]
        finally:
            self.feeder.logits_in_use = False

    def _sampled_together(
        self, plan: StepPlan, drafts: Sequence[Draft], seen: History, fed: Fed
    ) -> dict[int, Tensor]:
        """The tokens of requests that are sampled in one call, by the request's ``id``."""
        own = {id(request): draft for request, draft in zip(plan.requests, drafts, strict=True)}
        with self.timers.phase("sample"):
            return sample_together(plan.merged, own, seen, fed)

    def _accepted(
        self,
        request: ActiveRequest,
        own: Draft,
        seen: History,
        now: History,
        fed: Fed,
        alone: bool,
        chosen: Tensor | None,
    ) -> Accepted | None:
        """
        What *request* accepts; None if one of its parts raised.

        *own* is its draft; *chosen* are its tokens if they were sampled together with others', else None.
        """
        run, rows, raw = request.run, request.rows, fed.raw
        try:
            if alone:
                return run.accept(fed.chosen, raw, seen, now, own, request.active)
            # Without the columns of other requests' longer drafts.
            columns, window = 1 + own.ids.shape[1], seen.rows(rows)
            raw = Scores(lambda: fed.logits[rows, :columns])
            if fed.chosen is not None:
                chosen = fed.chosen[rows, :columns]
            window = window.at(window.length[:, :columns])
            return run.accept(chosen, raw, window, now.rows(rows), own, request.active)
        except Exception as error:
            self._fail(request, error)
            return None
        finally:
            if fed.was_ahead and raw.was_read:
                request.runs_ahead, self._plan = False, None

    def _fail(self, request: ActiveRequest, error: Exception) -> None:
        self.failed(request, error)
        request.failed, self._plan = True, None

    def _advanced(
        self,
        plan: StepPlan,
        proposals: Sequence[Proposal | None] | None,
        accepted: Sequence[Accepted | None],
        seconds: dict[str, float],
    ) -> list[StepResult]:
        """Record what the requests accepted; the results of the step."""
        results: list[StepResult] = []
        learned = {} if proposals is None else reports(plan, proposals, accepted, seconds)
        for number, (request, answer) in enumerate(zip(plan.requests, accepted, strict=True)):
            if answer is None:
                continue
            for output in answer.outputs:
                self._length[request.rows.start + output.row] += answer.added[output.row]
                if output.finish is not None:
                    request.active = [row for row in request.active if row != output.row]
                    self._plan = None
            results.append((request, answer.outputs, learned.get(number, _nothing)))
        return results


def _nothing() -> None:
    """Do nothing: no drafter was asked."""


def _side_by_side(requests: Sequence[ActiveRequest], drafts: Sequence[Draft], rows: int) -> Draft:
    """The drafts of all requests as one draft of a table of so many *rows*."""
    ids = torch.full((rows, max(draft.ids.shape[1] for draft in drafts)), -1)
    for request, draft in zip(requests, drafts, strict=True):
        ids[request.rows, : draft.ids.shape[1]] = draft.ids
    return Draft(ids)
