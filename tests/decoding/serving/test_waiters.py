"""Threads and tasks are woken when what they wait for is there, and not before."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from decodekit.decoding.serving.waiters import Waiters


class Counts:
    """A condition that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked, self.true = 0, False

    def __call__(self) -> bool:
        """Whether it is true."""
        self.asked += 1
        return self.true


def waiting(waiters: Waiters, *conditions: Counts) -> list[threading.Thread]:
    """A thread for each condition, which waits for it."""
    threads = [threading.Thread(target=waiters.wait, args=(one, 60.0)) for one in conditions]
    for thread in threads:
        thread.start()
    until(lambda: all(one.asked for one in conditions))
    return threads


def until(reached: Callable[[], bool]) -> None:
    """Return when *reached*."""
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_the_ready_are_woken() -> None:
    """The others are asked, and sleep on."""
    waiters, conditions = Waiters(), [Counts(), Counts()]
    threads = waiting(waiters, *conditions)
    conditions[1].true = True
    waiters.wake(everyone=False)
    threads[1].join(60)

    assert [True, False] == [thread.is_alive() for thread in threads]
    waiters.wake(everyone=True)
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_what_is_ready_does_not_wait() -> None:
    """Nor anything longer than it is told."""
    waiters, ready, never = Waiters(), Counts(), Counts()
    ready.true = True
    threads = [
        threading.Thread(target=waiters.wait, args=waits, daemon=True)
        for waits in ((ready, 600.0), (never, 0.001))
    ]
    for thread in threads:
        thread.start()
        thread.join(60)

    assert [False, False] == [thread.is_alive() for thread in threads]
    assert (1, 1) == (ready.asked, never.asked)


def test_tasks() -> None:
    """One that is cancelled is not woken later."""
    waiters = Waiters()

    async def run() -> tuple[bool, bool]:
        ready, cancelled = Counts(), Counts()
        tasks = [asyncio.ensure_future(waiters.wait_in_task(one)) for one in (ready, cancelled)]
        while not (ready.asked and cancelled.asked):
            await asyncio.sleep(0)
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        ready.true = True
        # From another thread, as a batcher's.
        await asyncio.to_thread(waiters.wake, everyone=False)
        await asyncio.wait_for(tasks[0], 60)
        return tasks[0].done(), cancelled.asked == 1

    assert (True, True) == asyncio.run(run())


def test_a_loop_that_is_closed() -> None:
    """Its tasks are gone; others are woken."""
    waiters, other = Waiters(), Counts()
    loop = asyncio.new_event_loop()
    task = loop.create_task(waiters.wait_in_task(lambda: False))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    (thread,) = waiting(waiters, other)
    waiters.wake(everyone=True)
    thread.join(60)

    assert not thread.is_alive()
    assert not task.done()
    # Nor is it woken at each step from now on.
    assert not waiters._ready
    task._log_destroy_pending = False  # type: ignore[attr-defined]
