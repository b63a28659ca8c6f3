"""Iterators whose items are computed in threads, as their event loop ends."""

import asyncio
import threading
from collections.abc import Iterator

from decodekit.decoding.results.background import in_thread


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
        async for _ in in_thread(items()):
            pass

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        task = asyncio.create_task(consume())
        await asyncio.to_thread(inside.wait)
        assert not task.done()

    asyncio.run(main())

    assert [] == problems
    assert ["closed"] == ends


def test_computes_every_item_in_one_thread_that_ends_with_the_iteration() -> None:
    """Also beside other iterations; a decoder may keep a team of workers for each thread that calls it."""

    def items() -> Iterator[threading.Thread]:
        for _ in range(20):
            yield threading.current_thread()

    async def threads() -> set[threading.Thread]:
        return {thread async for thread in in_thread(items())}

    async def main() -> list[set[threading.Thread]]:
        return await asyncio.gather(*(threads() for _ in range(3)))

    found = asyncio.run(main())

    assert [1, 1, 1] == [len(threads) for threads in found]
    assert len(set.union(*found)) == 3
    for thread in set.union(*found):
        thread.join(10)
        assert not thread.is_alive()
