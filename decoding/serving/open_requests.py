"""The requests of a batcher that have not ended."""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable

import attrs

from ..results.events import Event
from ..results.statistics import Statistics
from .batched_request import CANCELLED, BatchedRequest
from .request_handle import RequestHandle
from .request_table import Told


class BatcherFullError(RuntimeError):
    """As many requests wait as may."""


@attrs.define(eq=False)
class OpenRequests:
    """
    The requests that were submitted and have not ended, their handles, and what these are still to be told.

    Any thread adds, counts and closes; one at a time, which advances the requests, takes what arrived and
    tells the handles.
    """

    lock: threading.RLock
    """Guards all that follows, and the handles."""

    rows: int
    """How many requests run at a time."""

    closed: bool = attrs.field(default=False, init=False)
    """Whether no more are taken."""

    ended: Statistics = attrs.field(factory=Statistics, init=False)
    """What the requests that ended have counted."""

    _handles: dict[BatchedRequest, RequestHandle] = attrs.field(factory=dict, init=False)
    _beginning: dict[BatchedRequest, RequestHandle] = attrs.field(factory=dict, init=False)
    """Those that have their room, and whose streamer is being told of the prompts."""

    _arrived: list[BatchedRequest] = attrs.field(factory=list, init=False)
    """Those that were not taken yet."""

    _told: deque[Told] = attrs.field(factory=deque, init=False)
    """Events and errors that were not delivered to the handles yet."""

    def __len__(self) -> int:
        """How many there are, each prompt and sample counted."""
        return len(self._beginning) + len(self._handles)

    @property
    def num_arrived(self) -> int:
        """Those that were not taken yet."""
        return len(self._arrived)

    def room(self, max_waiting: int | None) -> float:
        """How many may be added now, if *max_waiting* may wait for a row; None for any number."""
        return math.inf if max_waiting is None else self.rows - len(self) + max_waiting

    @property
    def has_cancelled(self) -> bool:
        """Whether one of them is to be ended before the next step."""
        return any(request.ending for request in self._handles)

    def add(
        self,
        requests: list[BatchedRequest],
        handle: RequestHandle,
        max_waiting: int | None,
        may_wait: bool,
    ) -> bool:
        """
        Add *requests* of one *handle*, all or none, and begin its streamer.

        Args:
            requests: One for each row of the result.

            handle: Theirs.

            max_waiting: How many requests may wait for a row; None for any number.

            may_wait: Whether the caller waits until there is room.

        Returns:
            Whether there was room; False only if the caller *may_wait* for it.

        Raises:
            RuntimeError: They are closed.

            ValueError: There is never room for so many.

            BatcherFullError: There is no room now, and the caller does not wait.
        """
        begun = False
        try:
            with self.lock:
                self._check_room(len(requests), max_waiting, may_wait)
                if len(requests) > self.room(max_waiting):
                    return False
                self._beginning |= dict.fromkeys(requests, handle)
            # Without the lock, since a streamer may take its time. The stepping thread cannot see them yet.
            handle.begin_streamer()
            begun = True
        finally:
            with self.lock:
                # All may have been given up meanwhile.
                kept = [request for request in requests if self._beginning.pop(request, None)]
                if begun:
                    self._arrived += kept
                    self._handles |= dict.fromkeys(kept, handle)
        return True

    def _check_room(self, count: int, max_waiting: int | None, may_wait: bool) -> None:
        if self.closed:
            raise RuntimeError("the batcher is closed: make a new one")
        if max_waiting is not None and count > self.rows + max_waiting:
            raise ValueError(
                f"a request must have at most {self.rows} + {max_waiting} prompts and samples, "
                f"which may run and wait (batch_size and max_waiting): got {count}"
            )
        if count > self.room(max_waiting) and not may_wait:
            waiting = max(0, len(self) - self.rows)
            raise BatcherFullError(
                f"at most max_waiting={max_waiting} requests may wait for a row: {waiting} do, and "
                f"{count} came"
            )

    def move_arrived(self, add: Callable[[list[BatchedRequest]], None]) -> None:
        """Hand those that arrived to *add*, and keep them as arrived if it raises."""
        with self.lock:
            add(self._arrived)
            self._arrived.clear()

    def note(self, told: Iterable[Told]) -> None:
        """Keep what handles are to be told, in order."""
        self._told += told

    def note_interrupt(self, error: Exception) -> None:
        """Keep that all but those that arrived have ended by *error*."""
        with self.lock:
            taken = [request for request in self._handles if request not in self._arrived]
        self.note((request, error) for request in taken)

    def tell(self) -> None:
        """Tell handles and their streamers what was kept; each once, whatever a streamer raises."""
        while self._told:
            request, news = self._told[0]
            handle = self._handles[request]
            try:
                # Without the lock: a streamer may take its time.
                handle.tell_streamer(news)
            finally:
                with self.lock:
                    self._told.popleft()
                    if isinstance(news, Event):
                        handle.add(news)
                    else:
                        request.run.timers.touch()
                        handle.fail(news)
                    if not isinstance(news, Event) or news.finish is not None:
                        del self._handles[request]
                        self.ended += _counts(request.run.timers.statistics)

    def close(self, finish: bool) -> None:
        """Take no more; those that were added *finish*, or are cancelled before the next step."""
        with self.lock:
            self.closed = True
            for request in [*self._beginning, *self._handles]:
                # There may be no reader left.
                request.max_unread = None
                request.ending = request.ending if finish else CANCELLED

    def leave_parent(self, lock: threading.RLock) -> None:
        """In a forked child: a new *lock*, and no requests that another thread was adding."""
        self.lock = lock
        self._beginning.clear()

    def give_up(self) -> list[RequestHandle]:
        """Take no more, and forget all; the handle of each, which is told no more from here."""
        with self.lock:
            self.closed = True
            handles, self._beginning, self._handles = {**self._beginning, **self._handles}, {}, {}
            self._arrived.clear()
            self._told.clear()
        return list(handles.values())


def _counts(statistics: Statistics) -> Statistics:
    """What may be added to the statistics of all steps, without lists that grow with the requests."""
    return attrs.evolve(
        statistics, row_steps=[], row_accepted=[], reused=0, total_seconds=0.0, first_token_seconds=None
    )
