"""From a generation's thread to a reader: bounded, and nothing lost without a word."""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Literal, TypeAlias

import attrs
from attrs import validators

from ..decoding.results.events import Event
from ..decoding.results.streamers import ClosedError
from ..decoding.validation import a_whole_number

WhenFull: TypeAlias = Literal["wait", "merge"]
"""What a generation does that is ahead of its reader: see :class:`EventQueue`."""

# Nobody tells that an event loop was closed, or that the interpreter would like to exit.
_POLL_SECONDS = 0.2

# A reader needs some 50 microseconds to wake up. If the next forward has begun by then and keeps the
# interpreter's lock, as compiled programs do, it gets the text one forward late.
_READER_WAKE_UP_SECONDS = 0.0005


def _wait_or_merge(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value not in ("wait", "merge"):
        raise ValueError(f"'{attribute.name}' must be 'wait' or 'merge': got {value!r}")


def merged(events: Sequence[Event]) -> Event:
    """
    One event that says what *events* of one row say one after another.

    >>> merged([Event(0, (5,), "Hel"), Event(0, (6, 7), "lo")])
    Event(row=0, ids=(5, 6, 7), text='Hello', ending=None, logprobs=None)
    """
    if len(events) == 1:
        return events[0]
    texts = [event.text for event in events if event.text is not None]
    logprobs = [event.logprobs for event in events if event.logprobs is not None]
    return Event(
        events[0].row,
        tuple(chain.from_iterable(event.ids for event in events)),
        "".join(texts) if texts else None,
        events[-1].finish,
        tuple(chain.from_iterable(logprobs)) if logprobs else None,
    )


@attrs.define(eq=False)
class EventQueue:
    """
    Events of one generation on their way to one reader, a thread or a task of an event loop.

    Any thread may call anything here. What the iterators of this room have in common.

    Args:
        capacity: Events that may wait to be read, at least 1.

        when_full: What happens when as many do. ``"wait"``: the generation pauses. ``"merge"``:
            it goes on, and the event is joined to the last one of its row that waits; a row of
            which none does gets one beyond the capacity.

        for_tasks: Whether tasks read. Then the thread of a running event loop is not to wait for
            them.
    """

    capacity: int = attrs.field(validator=[a_whole_number, validators.ge(1)])
    when_full: WhenFull = attrs.field(validator=_wait_or_merge)
    for_tasks: bool = False

    # Joined when they are read, or every token would copy those that wait.
    _waiting: deque[list[Event]] = attrs.field(init=False, repr=False, factory=deque)
    _begun: bool = attrs.field(init=False, default=False)
    _ended: bool = attrs.field(init=False, default=False)
    _closed: bool = attrs.field(init=False, default=False)
    _error: BaseException | None = attrs.field(init=False, repr=False, default=None)
    _reader_is_gone: Callable[[], bool] = attrs.field(init=False, repr=False)
    # Readers that wait: threads, and of tasks what to tell.
    _threads: int = attrs.field(init=False, default=0)
    _tasks: set["asyncio.Future[None]"] = attrs.field(init=False, repr=False, factory=set)
    # Guards all of the above, and is notified whenever any of it changes. It is reentrant: a
    # collection of garbage may close this queue from within any line.
    _change: threading.Condition = attrs.field(init=False, repr=False, factory=threading.Condition)

    @_reader_is_gone.default
    def _while_the_creating_thread_lives(self) -> Callable[[], bool]:
        return _end_of(threading.current_thread())

    # The generation's side.

    def begin(self) -> None:
        """
        Say that a generation is about to begin.

        Raises:
            ClosedError: Nobody is going to read.

            RuntimeError: Another one has begun before.
        """
        with self._change:
            self._require_reader()
            if self._begun:
                raise RuntimeError("an iterator serves one generation: make a new one for each")
            self._begun = True

    def put(self, event: Event) -> None:
        """
        Pass on *event*; when the queue is full, wait or merge.

        Raises:
            ClosedError: The reader is gone.

            RuntimeError: The events have ended; or there is no room, and an event loop runs in
                this thread and could not do anything about it.
        """
        with self._change:
            if self.when_full == "wait":
                self._wait_for_room()
            self._require_reader()
            if self._ended:
                raise RuntimeError("this iterator has ended: make a new one for each generation")
            self._add(event)
            awaited = self._threads > 0 or len(self._tasks) > 0
            self._tell_readers()
            if awaited and not (self.for_tasks and _runs_an_event_loop()):
                self._change.wait_for(lambda: not self._waiting, _READER_WAKE_UP_SECONDS)

    def require_reader(self) -> None:
        """
        Do nothing, if somebody reads.

        Raises:
            ClosedError: The reader is gone.
        """
        with self._change:
            self._require_reader()

    def end(self) -> None:
        """Let the reader stop behind the last event."""
        with self._change:
            self._ended = True
            self._tell_readers()

    def fail(self, error: BaseException) -> None:
        """Let the reader raise *error* behind the last event."""
        with self._change:
            # Who has closed or read to the end is not to be told any more.
            if not (self._closed or self._ended):
                self._error = error
            self._ended = True
            self._tell_readers()

    # The reader's side.

    def take(self, timeout: float | None) -> Event | None:
        """
        Wait for the next event; None when there are no more, now and ever after.

        What the generation failed with is raised once, behind its last event.

        Raises:
            TimeoutError: None came within *timeout* seconds.
        """
        with self._change:
            self._reader_is_gone = _end_of(threading.current_thread())
            self._threads += 1
            try:
                if not self._change.wait_for(self._is_decided, timeout):
                    raise _timeout_error(timeout)
            finally:
                self._threads -= 1
            return self._take()

    async def take_in_task(self, timeout: float | None) -> Event | None:
        """
        :meth:`take` without blocking the event loop, which is bound here.

        A cancelled reader has taken nothing.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._change:
                self._reader_is_gone = _end_of(threading.current_thread(), loop)
                if self._is_decided():
                    return self._take()
                told: asyncio.Future[None] = loop.create_future()
                self._tasks.add(told)
            try:
                # Another task may be told of the same event, and be the one that takes it.
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise _timeout_error(timeout)
                await (told if left is None else asyncio.wait([told], timeout=left))
            finally:
                with self._change:
                    self._tasks.discard(told)

    def close(self) -> None:
        """Read no further: what waits is dropped, and the next :meth:`put` raises."""
        with self._change:
            self._closed = True
            self._waiting.clear()
            self._error = None
            self._tell_readers()

    # Under the lock.

    def _wait_for_room(self) -> None:
        while len(self._waiting) >= self.capacity and not (self._closed or self._reader_is_gone()):
            if self.for_tasks and _runs_an_event_loop():
                raise RuntimeError(
                    "the generation waits for a reader, and blocks the event loop: run it in a thread, "
                    "such as asyncio.to_thread(generator, prompt, streamer=pieces)"
                )
            self._change.wait(_POLL_SECONDS)

    def _require_reader(self) -> None:
        if self._closed:
            raise ClosedError("the reader closed its iterator, so the generation stops")
        if self._reader_is_gone():
            # Should anybody read after all, it is not to take this for the end.
            self.fail(RuntimeError("the thread or the event loop that was to read ended before the events"))
            raise ClosedError("nobody is left to read, so the generation stops")

    def _add(self, event: Event) -> None:
        if len(self._waiting) >= self.capacity:
            for events in reversed(self._waiting):
                if events[0].row == event.row:
                    events.append(event)
                    return
        self._waiting.append([event])

    def _is_decided(self) -> bool:
        return bool(self._waiting) or self._ended or self._closed

    def _take(self) -> Event | None:
        if self._waiting and not self._closed:
            self._change.notify_all()
            return merged(self._waiting.popleft())
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return None
        finally:
            # An error knows this frame by its traceback.
            del error

    def _tell_readers(self) -> None:
        self._change.notify_all()
        while self._tasks:
            told = self._tasks.pop()
            # A closed loop takes no calls.
            with contextlib.suppress(RuntimeError):
                told.get_loop().call_soon_threadsafe(_tell, told)


def _tell(told: "asyncio.Future[None]") -> None:
    if not told.done():
        told.set_result(None)


def _timeout_error(timeout: float | None) -> TimeoutError:
    return TimeoutError(f"nothing to read within {timeout} s, the timeout of this iterator")


def _end_of(thread: threading.Thread, loop: asyncio.AbstractEventLoop | None = None) -> Callable[[], bool]:
    """
    Whether a reader in *thread*, or in its event loop, is no more.

    While the main thread lives another thread may still take over; after that the interpreter
    waits for the generation's thread, which would wait for a reader for ever.
    """
    main = threading.main_thread()
    return lambda: (loop is not None and loop.is_closed()) or not (thread.is_alive() or main.is_alive())


def _runs_an_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
