"""Text from a thread to event-loop tasks: complete, without deadlocks."""

import asyncio
import gc
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

import pytest

from decodekit.decoding.results.events import Event
from decodekit.decoding.results.streamers import forward
from decodekit.streaming import AsyncTextIterator, ClosedError

PATIENCE = 10.0
"""Timeout in seconds."""


def generate(pieces: AsyncTextIterator, texts: Iterator[str]) -> list[Event]:
    """Put *texts* into the streamer, as a generator does."""
    return list(forward((Event(0, (1,), text) for text in texts), pieces, [[7]]))


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


async def read(pieces: AsyncTextIterator) -> list[str]:
    return [piece async for piece in pieces]


class Endless:
    """Texts without end, counted."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> "Endless":
        return self

    def __next__(self) -> str:
        self.count += 1
        return "a"


class TestReading:
    """What the reader gets."""

    @pytest.mark.parametrize("capacity", [1, 3, 64])
    @pytest.mark.parametrize("timeout", [None, PATIENCE])
    def test_pieces_come_in_order_and_complete(self, capacity: int, timeout: float | None) -> None:
        """Whatever the capacity; pieces without text are no pieces."""
        texts = [str(i) if i % 7 else "" for i in range(500)]

        async def run() -> list[str]:
            pieces = AsyncTextIterator(timeout=timeout, capacity=capacity)
            got, _ = await asyncio.gather(read(pieces), asyncio.to_thread(generate, pieces, iter(texts)))
            return got

        assert [text for text in texts if text] == asyncio.run(run())

    def test_merged_pieces_join_to_the_text(self) -> None:
        """A slow reader gets fewer and longer pieces."""
        texts = [str(i) for i in range(300)]

        async def run() -> list[str]:
            pieces = AsyncTextIterator(capacity=4, when_full="merge")
            await asyncio.to_thread(generate, pieces, iter(texts))
            return await read(pieces)

        got = asyncio.run(run())
        assert "".join(texts) == "".join(got)
        assert 4 == len(got)

    def test_after_the_end_there_is_nothing(self) -> None:
        """Also on repeated reads."""

        async def run() -> None:
            pieces = AsyncTextIterator()
            await asyncio.to_thread(generate, pieces, iter("ab"))

            assert ["a", "b"] == await read(pieces)
            for _ in range(3):
                with pytest.raises(StopAsyncIteration):
                    await pieces.__anext__()
            assert [] == await read(pieces)

        asyncio.run(run())

    def test_many_live_in_one_loop(self) -> None:
        """Each reads its own, and other tasks run meanwhile."""

        async def one(i: int) -> str:
            async with AsyncTextIterator(capacity=2) as pieces:
                texts = iter([str(i)] * 20)
                thread = threading.Thread(target=generate, args=(pieces, texts))
                thread.start()
                got = "".join(await read(pieces))
                thread.join(PATIENCE)
                return got

        async def run() -> list[str]:
            return await asyncio.gather(*(one(i) for i in range(50)))

        assert [str(i) * 20 for i in range(50)] == asyncio.run(run())

    def test_the_loop_is_bound_when_it_is_first_read(self) -> None:
        """It may be made where no loop runs, or in another loop that is closed by then."""

        async def make() -> AsyncTextIterator:
            return AsyncTextIterator()

        for pieces in (AsyncTextIterator(), asyncio.run(make())):
            thread = threading.Thread(target=generate, args=(pieces, iter("ab")))
            thread.start()

            assert ["a", "b"] == asyncio.run(read(pieces))

            thread.join(PATIENCE)

    def test_several_tasks_may_read_one(self) -> None:
        """Each piece goes to one of them."""

        async def run() -> list[str]:
            pieces = AsyncTextIterator(capacity=2)
            texts = iter([str(i) for i in range(100)])
            tasks = [asyncio.create_task(read(pieces)) for _ in range(3)]
            await asyncio.to_thread(generate, pieces, texts)
            return sorted(chain.from_iterable(await asyncio.gather(*tasks)), key=int)

        assert [str(i) for i in range(100)] == asyncio.run(run())

    @pytest.mark.parametrize(
        "options", [{"timeout": 0}, {"capacity": 0}, {"capacity": True}, {"when_full": "drop"}], ids=str
    )
    def test_senseless_options_are_refused(self, options: dict[str, Any]) -> None:
        """At construction."""
        with pytest.raises((TypeError, ValueError), match=f"'{next(iter(options))}' must be"):
            AsyncTextIterator(**options)


class TestTimeout:
    def test_waiting_is_limited(self) -> None:
        """The error names the timeout; single pieces can still be read afterwards."""

        async def run() -> None:
            pieces = AsyncTextIterator(timeout=0.02)
            with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
                await anext(pieces)
            pieces.put_event(Event(0, (1,), "late"))

            assert "late" == await anext(pieces)

        asyncio.run(run())

    def test_in_a_loop_it_stops_the_generation(self) -> None:
        """A timeout leaves the loop, which closes the iterator."""
        begun, go_on = threading.Event(), threading.Event()

        def texts() -> Iterator[str]:
            yield "a"
            begun.set()
            assert go_on.wait(PATIENCE)
            yield from iter(lambda: "b", None)

        async def run() -> None:
            pieces = AsyncTextIterator(timeout=0.05)
            generation = asyncio.create_task(asyncio.to_thread(generate, pieces, texts()))
            assert await asyncio.to_thread(begun.wait, PATIENCE)
            with pytest.raises(TimeoutError):
                await read(pieces)
            go_on.set()

            assert 1 == len(await generation)

        asyncio.run(run())


class TestErrors:
    """What goes wrong on the other side."""

    def test_the_generations_error_is_the_readers(self) -> None:
        """Once, after the preceding pieces, with the original traceback."""

        def a_broken_forward() -> Iterator[str]:
            yield "fine"
            raise RuntimeError("out of device memory")

        async def run() -> None:
            pieces = AsyncTextIterator()
            generation = asyncio.create_task(asyncio.to_thread(generate, pieces, a_broken_forward()))

            assert "fine" == await anext(pieces)
            with pytest.raises(RuntimeError, match="out of device memory") as caught:
                await anext(pieces)
            assert "a_broken_forward" in "".join(traceback.format_exception(caught.value))
            assert await asyncio.wait_for(asyncio.gather(generation, return_exceptions=True), PATIENCE) == [
                caught.value
            ]
            assert [] == await read(pieces)

        asyncio.run(run())

    def test_a_full_queue_is_refused_where_the_loop_runs(self) -> None:
        """Waiting there would be a deadlock."""

        async def run() -> None:
            with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
                generate(AsyncTextIterator(capacity=3), Endless())

        asyncio.run(run())


class TestClosing:
    """Leaving early."""

    @pytest.mark.parametrize("capacity", [1, 64])
    def test_breaking_out_of_the_loop_stops_the_generation(self, capacity: int) -> None:
        """Also without an ``async with`` block."""
        texts = Endless()

        async def run() -> None:
            pieces = AsyncTextIterator(capacity=capacity)
            generation = asyncio.create_task(asyncio.to_thread(generate, pieces, texts))
            async for _ in pieces:
                break
            await asyncio.wait_for(generation, PATIENCE)

        asyncio.run(run())

    def test_breaking_out_at_the_very_end_of_the_program(self) -> None:
        """Closing the event loop waits for its threads, and this one ends."""

        async def run() -> asyncio.Future[Any]:
            pieces = AsyncTextIterator(capacity=1)
            generation = asyncio.get_running_loop().run_in_executor(None, generate, pieces, Endless())
            async for _ in pieces:
                break
            return generation

        asyncio.run(run())

    def test_leaving_the_block_stops_the_generation(self) -> None:
        """Even one that was never read."""
        texts = Endless()

        async def run() -> None:
            async with AsyncTextIterator(capacity=2) as pieces:
                generation = asyncio.create_task(asyncio.to_thread(generate, pieces, texts))
                await eventually(lambda: texts.count >= 3)
            await asyncio.wait_for(generation, PATIENCE)

        asyncio.run(run())

        assert 3 == texts.count

    def test_aclose_stops_the_generation(self) -> None:
        """Twice is once; what waited is not read any more."""

        async def run() -> None:
            pieces = AsyncTextIterator()
            pieces.put_event(Event(0, (1,), "a"))
            await pieces.aclose()
            await pieces.aclose()

            assert [] == await read(pieces)
            with pytest.raises(ClosedError):
                pieces.put_event(Event(0, (1,), ""))

        asyncio.run(run())

    def test_a_cancelled_task_stops_the_generation(self) -> None:
        """While it waits in the loop, whose iterator ends with it."""
        told = threading.Event()

        def texts() -> Iterator[str]:
            yield "a"
            assert told.wait(PATIENCE)
            yield from iter(lambda: "b", None)

        async def run() -> None:
            pieces = AsyncTextIterator()
            generation = asyncio.create_task(asyncio.to_thread(generate, pieces, texts()))
            task = asyncio.create_task(read(pieces))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            told.set()

            assert 1 == len(await asyncio.wait_for(generation, PATIENCE))

        asyncio.run(run())

    def test_a_cancelled_wait_for_one_piece_loses_none(self) -> None:
        """``asyncio.wait_for(anext(pieces))`` may be tried again."""

        async def run() -> list[str]:
            pieces = AsyncTextIterator(capacity=3)
            texts = (str(i) for i in range(60) if time.sleep(0.001) is None)
            generation = asyncio.create_task(asyncio.to_thread(generate, pieces, texts))
            got = []
            while len(got) < 60:
                with suppress(TimeoutError):
                    got.append(await asyncio.wait_for(anext(pieces), 0.0007))
            await generation
            return got

        assert [str(i) for i in range(60)] == asyncio.run(run())

    def test_a_loop_that_is_closed_stops_the_generation(self) -> None:
        """Whether it waits for room just then or not."""
        for capacity in (1, 1_000_000):
            texts, loop = Endless(), asyncio.new_event_loop()
            pieces = AsyncTextIterator(capacity=capacity)
            thread = threading.Thread(target=generate, args=(pieces, texts))
            thread.start()

            assert "a" == loop.run_until_complete(anext(pieces))

            loop.close()
            thread.join(PATIENCE)

            assert not thread.is_alive()

    def test_a_waiting_reader_whose_loop_is_closed_does_no_harm(self) -> None:
        """The generation stops, without an error of its own."""
        pieces, loop = AsyncTextIterator(), asyncio.new_event_loop()
        waiting = loop.create_task(anext(pieces))  # type: ignore[arg-type]
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(waiting)
        loop.close()

        assert [] == generate(pieces, Endless())

    def test_nothing_is_left_behind(self) -> None:
        """No task, no thread, no pieces."""
        made: list[weakref.ref[AsyncTextIterator]] = []

        async def run() -> None:
            before = asyncio.all_tasks()
            for stop in range(20):
                async with AsyncTextIterator(capacity=2) as pieces:
                    made.append(weakref.ref(pieces))
                    thread = threading.Thread(target=generate, args=(pieces, Endless()))
                    thread.start()
                    for _ in range(stop):
                        await anext(pieces)
                thread.join(PATIENCE)
                assert not pieces._queue._tasks
            await asyncio.sleep(0)

            assert before == asyncio.all_tasks()

        threads = threading.active_count()
        asyncio.run(run())
        gc.collect()

        assert threads == threading.active_count()
        assert not [reference for reference in made if reference() is not None]
