"""Bounded queue of events from a generation's thread to a reader."""

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

from ..decoding.after_fork import told_after_fork
from ..decoding.results.events import Event
from ..decoding.results.streamers import ClosedError
from ..decoding.validation import a_whole_number

WhenFull: TypeAlias = Literal["wait", "merge"]
"""Behaviour of a full queue: see :class:`EventQueue`."""

# Polled, since there is no notification of a closed event loop or a pending interpreter exit.
_POLL_SECONDS = 0.2

# A reader needs some 50 microseconds to wake up. If the next forward has begun by then and holds the
# GIL, as compiled programs do, the reader gets the event one forward late.
_READER_WAKE_UP_SECONDS = 0.0005


def _wait_or_merge(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value not in ("wait", "merge"):
        raise ValueError(f"'{attribute.name}' must be 'wait' or 'merge': got {value!r}")


def merged(events: Sequence[Event]) -> Event:
    """
    Merge consecutive *events* of one row into one.

    >>> merged([Event(0, (5,), "Hel"), Event(0, (6, 7), "lo")])
    Event(row=0, ids=(5, 6, 7), text='Hello', finish=None, logprobs=None)
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
    Events of one generation for one reader, a thread or a task of an event loop.

    Thread-safe. The common part of the iterators of this package.

    Args:
        capacity: Maximum number of events waiting to be read, at least 1.

        when_full: Behaviour at capacity. ``"wait"`` pauses the generation. ``"merge"`` continues
            and merges the event into the last waiting one of its row; a row without one exceeds
            the capacity by one.

        for_tasks: Whether the readers are tasks. A running event loop's thread then never waits
            for them.
    """

    capacity: int = attrs.field(validator=[a_whole_number, validators.ge(1)])
    when_full: WhenFull = attrs.field(validator=_wait_or_merge)
    for_tasks: bool = False

    # Merged on reading: merging on writing would copy all waiting tokens each time.
    _waiting: deque[list[Event]] = attrs.field(init=False, repr=False, factory=deque)
    _begun: bool = attrs.field(init=False, default=False)
    _ended: bool = attrs.field(init=False, default=False)
    _closed: bool = attrs.field(init=False, default=False)
    _error: BaseException | None = attrs.field(init=False, repr=False, default=None)
    _reader_is_gone: Callable[[], bool] = attrs.field(init=False, repr=False)
    # The thread of the generation, once it has begun.
    _generating: threading.Thread | None = attrs.field(init=False, repr=False, default=None)
    # Waiting readers: number of threads, and a future of each task.
    _threads: int = attrs.field(init=False, default=0)
    _tasks: set["asyncio.Future[None]"] = attrs.field(init=False, repr=False, factory=set)
    # Guards all of the above. Reentrant: garbage collection may close this queue from within any line.
    # Entered itself, not by way of the condition, whose __enter__ is a Python function: an interrupt there
    # may leave the lock locked.
    _lock: threading.RLock = attrs.field(init=False, repr=False, factory=threading.RLock)
    # Notified on every change.
    _change: threading.Condition = attrs.field(init=False, repr=False)

    @_change.default
    def _a_condition_of_the_lock(self) -> threading.Condition:
        return threading.Condition(self._lock)

    def __attrs_post_init__(self) -> None:
        """Note the queue for forked processes."""
        _queues.add(self)

    @_reader_is_gone.default
    def _while_the_creating_thread_lives(self) -> Callable[[], bool]:
        return _end_of(threading.current_thread())

    # The generation's side.

    def begin(self) -> None:
        """
        Mark the start of a generation.

        Raises:
            ClosedError: No reader is left.

            RuntimeError: A generation has begun before.
        """
        with self._lock:
            self._require_reader()
            if self._begun:
                raise RuntimeError("an iterator serves one generation: make a new one for each")
            self._begun = True
            self._generating = threading.current_thread()

    def put(self, event: Event) -> None:
        """
        Enqueue *event*; at capacity, wait or merge.

        Raises:
            ClosedError: The reader is gone.

            RuntimeError: The events have ended; or the queue is full and this thread runs the
                event loop of the reader, which could never make room.
        """
        with self._lock:
            if self.when_full == "wait":
                self._wait_for_room()
            self._require_reader()
            if self._ended:
                raise RuntimeError("this iterator has ended: make a new one for each generation")
            self._add(event)
            awaited = self._threads > 0 or len(self._tasks) > 0
            self._notify_readers()
            if awaited and not (self.for_tasks and _runs_an_event_loop()):
                self._change.wait_for(lambda: not self._waiting, _READER_WAKE_UP_SECONDS)

    def require_reader(self) -> None:
        """
        Raise if there is no reader.

        Raises:
            ClosedError: The reader is gone.
        """
        with self._lock:
            self._require_reader()

    def end(self) -> None:
        """End the reader's iteration after the last event."""
        with self._lock:
            self._ended = True
            self._notify_readers()

    def fail(self, error: BaseException) -> None:
        """Raise *error* in the reader after the last event."""
        with self._lock:
            # A reader that closed or reached the end must not see an error.
            if not (self._closed or self._ended):
                self._error = error
            self._ended = True
            self._notify_readers()

    # The reader's side.

    def take(self, timeout: float | None) -> Event | None:
        """
        Wait for the next event; None after the last one.

        An error of the generation is raised once, after its last event.

        Raises:
            TimeoutError: No event within *timeout* seconds.
        """
        with self._lock:
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
        :meth:`take` without blocking the event loop, to which it binds the queue.

        A cancelled call takes no event.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                self._reader_is_gone = _end_of(threading.current_thread(), loop)
                if self._is_decided():
                    return self._take()
                waiter: asyncio.Future[None] = loop.create_future()
                self._tasks.add(waiter)
            try:
                # Another task may have been notified of the same event and take it first.
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise _timeout_error(timeout)
                await (waiter if left is None else asyncio.wait([waiter], timeout=left))
            finally:
                with self._lock:
                    self._tasks.discard(waiter)

    def close(self) -> None:
        """Stop reading: waiting events are dropped, and the next :meth:`put` raises."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            self._error = None
            self._notify_readers()

    def after_fork_in_child(self) -> None:
        """Give up the threads of the parent: none of them releases a lock here, or goes on generating."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()
        # Without the parent's waiting threads and tasks.
        self._change, self._threads, self._tasks = threading.Condition(self._lock), 0, set()
        if self._generating is not None and not self._generating.is_alive():
            self.fail(
                RuntimeError(
                    "the events must be read in the process that generates them: this one was forked while "
                    "another thread was generating"
                )
            )

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
            # A late reader must not mistake this for the end.
            self.fail(RuntimeError("the thread or the event loop that was to read ended before the events"))
            raise ClosedError("no reader is left, so the generation stops")

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
            # Break the reference cycle from the error's traceback to this frame.
            del error

    def _notify_readers(self) -> None:
        self._change.notify_all()
        while self._tasks:
            waiter = self._tasks.pop()
            # A closed loop raises.
            with contextlib.suppress(RuntimeError):
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)


_queues = told_after_fork(EventQueue.after_fork_in_child)


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


def _timeout_error(timeout: float | None) -> TimeoutError:
    return TimeoutError(f"nothing to read within {timeout} s, the timeout of this iterator")


def _end_of(thread: threading.Thread, loop: asyncio.AbstractEventLoop | None = None) -> Callable[[], bool]:
    """
    A function that tells whether a reader in *thread*, or in its event loop, is gone.

    While the main thread lives another thread may still take over. After that the interpreter
    waits for the generation's thread, which would wait for a reader forever.
    """
    main = threading.main_thread()
    return lambda: (loop is not None and loop.is_closed()) or not (thread.is_alive() or main.is_alive())


def _runs_an_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
