"""Requests that come and go between the steps of one decoding loop."""

import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import attrs

from ..engine.active_request import ActiveRequest
from ..engine.decode_loop import DecodeLoop
from ..feed_counts import FeedCounts
from ..optional_protocols import is_row_independent
from ..results.events import Event, StepOutput
from ..results.timers import Timers
from ..token_feeder import TokenFeeder
from .batched_request import BatchedRequest
from .prefill_pace import PrefillPace
from .request_statistics import SeatedTime
from .row_pin import RowPins
from .row_placement import best_row
from .waiting_line import WaitingLine

Told: TypeAlias = tuple[BatchedRequest, Event | Exception]
"""A request and its next event, or the exception of one of its parts, which has ended it."""


@attrs.define(eq=False)
class RequestTable:
    """
    All rows of a decoder, and the requests that have them or wait for one.

    Before each step requests leave and newcomers take free rows, each the row whose cache has most of its
    prompt; rows that are pinned for others come last. A newcomer's prompt is fed in chunks beside the rows
    that decode. Not safe between threads.
    """

    feeder: TokenFeeder
    timers: Timers
    """Count the forwards, and the time of drafts and forwards."""

    pace: PrefillPace
    waiting: WaitingLine
    exact_width: bool = False

    _seated: dict[ActiveRequest, BatchedRequest] = attrs.field(factory=dict, init=False)
    _pins: RowPins = attrs.field(factory=RowPins, init=False)
    _failures: list[Told] = attrs.field(factory=list, init=False)
    _lacked: dict[ActiveRequest, int] = attrs.field(factory=dict, init=False)
    """The tokens that requests which were not scored lacked after the last step."""

    _loop: DecodeLoop = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Refuse a feeder with something of its own for each row."""
        if not is_row_independent(self.feeder):
            raise ValueError(
                "requests take any free row, so a decoder must have nothing of its own for each row, such as "
                "a negative prompt: give one for all, or run as many prompts at a time as there are rows"
            )

    @_loop.default
    def _empty_loop(self) -> DecodeLoop:
        return DecodeLoop.empty(self.feeder, self.timers, self.exact_width, self._failed)

    @property
    def seated(self) -> list[BatchedRequest]:
        """The requests that have a row."""
        return list(self._seated.values())

    def step(self) -> list[Told]:
        """
        Seat newcomers, and advance the requests that have a row by one step.

        Returns:
            What each request is to be told, in order.

        Raises:
            Exception: The decoder's own; the requests are left as they were.
        """
        self._seat_newcomers()
        for active, request in self._seated.items():
            if active.paused != (must_pause := request.must_pause):
                self._loop.pause(active, must_pause)
        running = [request for active, request in self._seated.items() if not active.paused]
        if not running:
            return self._taken_failures()
        most, drafts = self._columns(running)
        if self._is_overwritten():
            # Another user of the decoder may do so again between any two steps, and chunks would never end.
            most = None
        before, started = self.feeder.counts, time.perf_counter()
        results = self._loop.step(most, drafts)
        self._lacked = self._lacking_after({active for active, _, _ in results})
        width, tokens = self._chunk(self.feeder.counts.since(before))
        # The time of a forward that was queued before is not that of the step.
        if width and not self._loop.was_ahead:
            self.pace.learn(width, tokens, time.perf_counter() - started)
        told: list[Told] = [
            answer
            for active, outputs, learn in results
            for answer in self._answers(self._seated[active], outputs[0], learn)
        ]
        told += self._taken_failures()
        for request, news in told:
            if isinstance(news, Exception) or news.finish is not None:
                self._leave(request)
        return told

    def end_due(self) -> list[Told]:
        """Take out the requests that were cancelled or whose time is over, and what they are told."""
        told: list[Told] = []
        now = time.monotonic()
        for request in [*self._seated.values(), *self.waiting]:
            finish = request.due(now)
            if finish is None:
                continue
            if request.seat is None:
                self.waiting.remove(request)
            self._leave(request)
            try:
                told.append((request, request.last_event(finish)))
            except Exception as error:
                told.append((request, error))
        return told

    def clear(self) -> list[BatchedRequest]:
        """Take out all requests, and return them."""
        never_seated = [request for request, _ in self._taken_failures() if request.seat is None]
        taken = [*self._seated.values(), *self.waiting, *never_seated]
        for request in list(self._seated.values()):
            self._leave(request)
        self.waiting.clear()
        return taken

    def _answers(
        self, request: BatchedRequest, output: StepOutput, learn: Callable[[], None]
    ) -> Iterator[Told]:
        """What *request* is told of a step."""
        try:
            event = request.event(output)
        except Exception as error:
            yield request, error
            return
        yield request, event
        try:
            learn()
        except Exception as error:
            # One that has ended is not told twice.
            if event.finish is None:
                yield request, error

    def _seat_newcomers(self) -> None:
        free = self._loop.free() if self.waiting else []
        while free and self.waiting:
            held = self.feeder.held()
            request = self.waiting.next()
            try:
                # A guided decoder asks for the negative prompt, which may be a function of the user's.
                overlap = self.feeder.overlap(request.prompt)
                pinned, own = self._pins.others(request.pin), self._pins.own(request.pin)
                row = best_row(free, overlap, held, pinned, own)
                seat = self._loop.join(request.run, request.history, row)
            except Exception as error:
                # It is in no list any more: this is the only way to tell it.
                self._failures.append((request, error))
                continue
            self._pins.hold(row, request.pin)
            self._seated[seat], request.seated_time = request, SeatedTime(self.timers.statistics)
            request.seat = seat
            free.remove(row)

    def _columns(self, running: list[BatchedRequest]) -> tuple[int | None, bool]:
        """The most columns of the next step, None for any number, and whether there may be drafts."""
        new = [one for one in running if not one.begun]
        if not new:
            # A draft model feeds a newcomer's prompt in chunks too.
            return self.pace.columns if len(running) > 1 else None, True
        shape = self.feeder.shape
        most = shape.widths[-1] if len(new) == len(running) else self.pace.columns
        if self.feeder.row_widths:
            # Chunks are forwards of their own.
            return most, True
        if all(one.run.drafting is None for one in running):
            # What prompts lack is compared token by token.
            return most, True
        lacking = max(self._lacking(one) for one in new)
        # A forward wider than the scored width scores one column of each row, so none for a draft.
        return most, min(lacking, most) <= shape.scored_width

    def _chunk(self, spent: FeedCounts) -> tuple[int, int]:
        """The columns of a prompt that a step had room for, and tokens in them; 0 if they are not known."""
        if self.feeder.row_widths:
            return spent.row_columns, spent.row_tokens
        # Of the prompt, and one of each row that decodes.
        return spent.columns // self.feeder.rows if spent.forwards == 1 else 0, spent.tokens

    def _lacking(self, request: BatchedRequest) -> int:
        prompt = request.prompt
        row = -1 if request.seat is None else request.seat.rows.start
        return len(prompt) - self.feeder.overlap(prompt)[row]

    def _is_overwritten(self) -> bool:
        """Whether a request lacks more than after the last step, since another user fed its row."""
        if not self._lacked:
            return False
        missing = self._loop.missing()
        return any(
            active in self._seated and missing[active.rows.start] > lacked
            for active, lacked in self._lacked.items()
        )

    def _lacking_after(self, scored: set[ActiveRequest]) -> dict[ActiveRequest, int]:
        """What the running requests other than *scored* lack."""
        unscored = [one for one in self._seated if not one.paused and one not in scored]
        if not unscored:
            return {}
        missing = self._loop.missing()
        return {active: missing[active.rows.start] for active in unscored}

    def _leave(self, request: BatchedRequest) -> None:
        if request.seat is not None and request.seated_time is not None:
            self._loop.leave(request.seat)
            del self._seated[request.seat]
            request.seat = None
            request.seated_time.leave()

    def _taken_failures(self) -> list[Told]:
        failures, self._failures = self._failures, []
        return failures

    def _failed(self, active: ActiveRequest, error: Exception) -> None:
        self._failures.append((self._seated[active], error))
