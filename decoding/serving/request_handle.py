"""What a submitted request is read, awaited and cancelled by."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from typing import Any, Protocol

import attrs

from ..results.events import Event
from ..results.generation import Generation, collect
from ..results.statistics import Statistics
from ..results.streamers import ClosedError, Listener
from .batched_request import CANCELLED, BatchedRequest
from .request_statistics import with_shared_work

_LOG = logging.getLogger(__name__)


class Server(Protocol):
    """What advances the requests."""

    def wait_until(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        """
        Return when *ready* is true, and advance the requests meanwhile if nothing else does.

        Raises:
            TimeoutError: It is not within *timeout* seconds.
        """

    async def wait_in_task(self, ready: Callable[[], bool]) -> None:
        """:meth:`wait_until` without blocking the event loop."""

    def notify(self) -> None:
        """Tell the threads and tasks that wait that something changed."""


@attrs.define(eq=False, repr=False)
class RequestHandle:
    """
    A request that was submitted to a :class:`~.batcher.Batcher`.

    Iterate over it for its events (with ``async for`` in an event loop), or take the :meth:`result`
    (``await handle``). Iterating begins at the first event that was not read; of several readers each event
    reaches one. Breaking off leaves the request running: :meth:`cancel` ends it. A task that is cancelled
    while it waits cancels the request.
    """

    _server: Server
    _prompts: list[list[int]]
    """Of each row of the result."""

    _requests: list[BatchedRequest]
    """One for each row."""

    seed: int
    """The seed of its random streams."""

    _streamer: Listener | None = None
    """Receives the events too, until it has been told of the end."""

    _events: list[Event] = attrs.field(factory=list, init=False)
    _unread: deque[Event] = attrs.field(factory=deque, init=False)
    _running: int = attrs.field(init=False)
    _error: Exception | None = attrs.field(default=None, init=False)

    @_running.default
    def _every_sample(self) -> int:
        return len(self._requests)

    @property
    def done(self) -> bool:
        """Whether all of its samples have ended."""
        return self._running == 0

    @property
    def statistics(self) -> Statistics:
        """
        What its samples have counted so far, and the work that they shared with other requests.

        Forwards and seconds are those of the batcher while they had rows, whatever else was fed. Time before
        that is the phase ``"waiting"``. Columns are counted in the batcher's own statistics only.
        """
        return statistics_of([self])

    def __iter__(self) -> Iterator[Event]:
        """
        The events that were not read, each as it occurs; advances the batcher if no thread does.

        Raises:
            Exception: What a part of the request or the decoder raised, after the last event.
        """
        while True:
            self._server.wait_until(self._readable)
            # Before an event is taken: another thread that iterates may take the last one.
            ended, event = self.done, self._take()
            if event is not None:
                yield event
            elif ended:
                break
        self._require_success()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The events, without blocking the event loop."""
        while True:
            await self._wait_in_task(self._readable)
            ended, event = self.done, self._take()
            if event is not None:
                yield event
            elif ended:
                break
        self._require_success()

    def __await__(self) -> Generator[Any, None, Generation]:
        """The :meth:`result`, without blocking the event loop."""
        return self._awaited().__await__()

    def result(self, timeout: float | None = None) -> Generation:
        """
        Wait for the end of all samples, whatever ``max_unread`` was: no event is waited for any more.

        Args:
            timeout: Seconds; None for any number. The request itself goes on, with ``max_unread`` lifted.

        Returns:
            One row for each sample or prompt, of what was generated, also where the request was cancelled.

        Raises:
            TimeoutError: It has not ended by then.

            Exception: What a part of the request or the decoder raised.
        """
        self._run_to_the_end()
        self._server.wait_until(lambda: self.done, timeout)
        return self._collected()

    def cancel(self) -> None:
        """End the request before the next step, with the finish ``"cancelled"``; no effect after its end."""
        for request in self._requests:
            request.ending = CANCELLED
        self._server.notify()

    async def aclose(self) -> None:
        """:meth:`cancel`, for ``async with contextlib.aclosing(handle)``."""
        self.cancel()

    def __repr__(self) -> str:
        """One line: rows of the result, tokens so far, and whether it has ended."""
        tokens = sum(len(event.ids) for event in self._events)
        state = "ended" if self.done else "running"
        count = len(self._requests)
        return f"<RequestHandle: {count} {'row' if count == 1 else 'rows'}, {tokens} tokens, {state}>"

    def begin_streamer(self) -> None:
        """Pass on the prompts; a streamer whose consumer has gone cancels the request."""
        streamer = self._streamer
        if streamer is None:
            return
        try:
            streamer.begin()
        except ClosedError:
            self._streamer = None
            for request in self._requests:
                request.ending = CANCELLED
            _tell_last(streamer.end)

    def tell_streamer(self, news: Event | Exception) -> None:
        """Pass on what happened; a streamer that raises ends the request, and raises nothing here."""
        streamer = self._streamer
        if streamer is None:
            return
        if isinstance(news, Exception):
            self._streamer = None
            _tell_last(streamer.fail, news)
            return
        try:
            streamer.put_event(news)
        except ClosedError:
            self._streamer = None
            self.cancel()
            _tell_last(streamer.end)
        except Exception as error:
            self._error, self._streamer = error, None
            self.cancel()
            _tell_last(streamer.fail, error)
        else:
            if news.finish is None or self._running > 1:
                return
            self._streamer = None
            try:
                streamer.end()
            except ClosedError:
                pass
            except Exception as error:
                self._error = error

    def add(self, event: Event) -> None:
        """Take the next event of a sample."""
        self._events.append(event)
        self._unread.append(event)
        self._requests[event.row].num_events += 1
        self._running -= event.finish is not None

    def fail(self, error: Exception) -> None:
        """Take the exception that ended a sample, which ends the others too."""
        # Set before the count: a thread that reads `done` without the lock must see the error.
        self._error = error if self._error is None else self._error
        self._running -= 1
        for request in self._requests:
            request.ending = CANCELLED

    def _readable(self) -> bool:
        return bool(self._unread) or self.done

    def _take(self) -> Event | None:
        """The next event that was not read; None if there is none now."""
        try:
            event = self._unread.popleft()
        except IndexError:
            return None
        request = self._requests[event.row]
        request.num_read += 1
        if request.max_unread is not None:
            self._server.notify()
        return event

    def _require_success(self) -> None:
        if self._error is not None:
            raise self._error

    def _run_to_the_end(self) -> None:
        for request in self._requests:
            request.max_unread = None
        self._server.notify()

    async def _awaited(self) -> Generation:
        self._run_to_the_end()
        await self._wait_in_task(lambda: self.done)
        return self._collected()

    async def _wait_in_task(self, ready: Callable[[], bool]) -> None:
        try:
            await self._server.wait_in_task(ready)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _collected(self) -> Generation:
        self._require_success()
        return collect(self._events, self._prompts, self.statistics, self.seed)


def statistics_of(handles: Sequence[RequestHandle]) -> Statistics:
    """As :attr:`RequestHandle.statistics`, of several that were submitted together to one batcher."""
    requests = [request for handle in handles for request in handle._requests]
    return with_shared_work(
        [request.run.timers.statistics for request in requests],
        [request.seated_time for request in requests if request.seated_time is not None],
        min(request.submitted for request in requests),
        running=not all(handle.done for handle in handles),
        drafts=any(request.run.drafting is not None for request in requests),
    )


def _tell_last(tell: Callable[..., None], *news: Exception) -> None:
    """Tell a streamer of the end of a request that has failed; a second failure is logged only."""
    try:
        tell(*news)
    except ClosedError:
        pass
    except Exception:
        _LOG.warning("a streamer raised when it was told of the end of its request", exc_info=True)
