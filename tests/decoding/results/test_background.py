"""Iterators whose items are computed in threads, as their event loop ends."""

import asyncio
import threading
from collections.abc import Iterator

from decodekit.decoding.results.background import in_threads


def test_the_end_of_the_event_loop_waits_for_the_thread() -> None:
    """``asyncio.run`` cancels every task; an iterator cannot be closed while a thread is in it."""
    inside, problems, ends = threading.Event(), [], []

    def items() -> Iterator[int]:
        try:
            inside.set()
            # Over only after the event loop has begun to end.
            threading.Event().wait(0.1)
            yield 1
        finally:
            ends.append("closed")

    async def consume() -> None:
        async for _ in in_threads(items()):
            pass

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        task = asyncio.create_task(consume())
        await asyncio.to_thread(inside.wait)
        assert not task.done()

    asyncio.run(main())

    assert [] == problems
    assert ["closed"] == ends
