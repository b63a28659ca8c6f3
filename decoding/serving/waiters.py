"""Threads and tasks that wait until something is ready."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import attrs


@attrs.define(eq=False)
class Waiters:
    """
    Wakes those whose wait is over.

    Not all: each thread that wakes to find nothing takes Python's lock from those that have work.
    """

    lock: threading.RLock = attrs.field(factory=threading.RLock, init=False)
    """
    Guards what they wait for.

    Entered itself, not by way of the condition, whose ``__enter__`` is a Python function: an interrupt there
    may leave the lock locked.
    """

    changed: threading.Condition = attrs.field(init=False)
    """Notified by each :meth:`wake`."""

    _ready: dict[Callable[[], None], Callable[[], bool]] = attrs.field(factory=dict, init=False)
    """What wakes each, and whether its wait is over."""

    @changed.default
    def _a_condition_of_the_lock(self) -> threading.Condition:
        return threading.Condition(self.lock)

    def wait(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return when *ready* is true at a :meth:`wake`, or after so many *seconds*."""
        woken = threading.Event()
        with self.lock:
            if ready():
                return
            self._ready[woken.set] = ready
        try:
            woken.wait(seconds)
        finally:
            with self.lock:
                del self._ready[woken.set]

    async def wait_in_task(self, ready: Callable[[], bool]) -> None:
        """:meth:`wait` without blocking the event loop, for any number of seconds."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        wake = partial(_wake, loop, woken)
        with self.lock:
            if ready():
                return
            self._ready[wake] = ready
        try:
            await woken
        finally:
            with self.lock:
                self._ready.pop(wake, None)

    def wake(self, everyone: bool) -> None:
        """Wake those that are ready, or *everyone*."""
        with self.lock:
            self.changed.notify_all()
            for wake, ready in list(self._ready.items()):
                if everyone or ready():
                    try:
                        wake()
                    except RuntimeError:
                        # A loop that is closed runs no task any more.
                        del self._ready[wake]


def _wake(loop: asyncio.AbstractEventLoop, woken: "asyncio.Future[None]") -> None:
    loop.call_soon_threadsafe(_set, woken)


def _set(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)
