"""Events of several rows in another thread or in an event loop equal those of the stream."""

import asyncio
import threading
from typing import Any

import pytest
import torch

from decodekit.decoding import Event, Generation, Generator, MaxNewTokens, Sample
from decodekit.streaming import AsyncEventIterator, EventIterator
from decodekit.testing import ScriptedDecoder

TABLE = torch.randn(53, 8, generator=torch.Generator().manual_seed(1))
PROMPTS = [[1, 2], [3], [4, 5]]
PATIENCE = 10.0
"""Timeout in seconds."""


def generator() -> Generator:
    return Generator(
        ScriptedDecoder(TABLE, batch_size=3), sampler=Sample(seed=0), stop=MaxNewTokens([5, 20, 11])
    )


def in_a_thread(events: Any) -> threading.Thread:
    thread = threading.Thread(target=generator(), args=(PROMPTS,), kwargs={"streamer": events})
    thread.start()
    return thread


def ids(events: list[Event]) -> list[list[int]]:
    return [[i for event in events if event.row == row for i in event.ids] for row in range(3)]


async def read(events: AsyncEventIterator) -> list[Event]:
    return [event async for event in events]


class TestEventIterator:
    @pytest.mark.parametrize("capacity", [1, 64])
    def test_gives_the_streams_events(self, capacity: int) -> None:
        """All of them, in order, finishes included."""
        events = EventIterator(timeout=PATIENCE, capacity=capacity)
        thread = in_a_thread(events)

        assert list(generator().stream(PROMPTS)) == list(events)

        thread.join(PATIENCE)

        assert next(events, None) is None

    def test_merged_events_add_up_to_the_result(self) -> None:
        """However late they are read."""
        with EventIterator(timeout=PATIENCE, capacity=1, when_full="merge") as events:
            in_a_thread(events).join(PATIENCE)
            got = list(events)

        assert generator()(PROMPTS).ids == ids(got)
        assert 3 == sum(event.finish is not None for event in got) == len(got)

    def test_leaving_the_loop_stops_the_generation(self) -> None:
        """And single events can be read without a loop."""
        events = EventIterator(timeout=PATIENCE, capacity=1)
        thread = in_a_thread(events)

        assert 0 == next(events).row

        for event in events:
            assert 1 == event.row
            break
        thread.join(PATIENCE)

        assert not thread.is_alive()
        assert [] == list(events)


class TestAsyncEventIterator:
    @pytest.mark.parametrize("capacity", [1, 64])
    def test_gives_the_streams_events(self, capacity: int) -> None:
        """All of them, in order, finishes included."""

        async def run() -> tuple[list[Event], Generation]:
            async with AsyncEventIterator(timeout=PATIENCE, capacity=capacity) as events:
                generation = asyncio.create_task(asyncio.to_thread(generator(), PROMPTS, streamer=events))
                first = await anext(events)
                rest = await read(events)
                with pytest.raises(StopAsyncIteration):
                    await anext(events)
                return [first, *rest], await generation

        events, result = asyncio.run(run())
        assert list(generator().stream(PROMPTS)) == events
        assert ids(events) == result.ids

    def test_merged_events_add_up_to_the_result(self) -> None:
        """However late they are read."""

        async def run() -> list[Event]:
            events = AsyncEventIterator(capacity=2, when_full="merge")
            await asyncio.to_thread(generator(), PROMPTS, streamer=events)
            return await read(events)

        assert generator()(PROMPTS).ids == ids(asyncio.run(run()))

    def test_aclose_stops_the_generation(self) -> None:
        """From another task, too."""

        async def run() -> None:
            events = AsyncEventIterator(capacity=1)
            generation = asyncio.create_task(asyncio.to_thread(generator(), PROMPTS, streamer=events))
            await anext(events)
            await events.aclose()
            result = await asyncio.wait_for(generation, PATIENCE)

            assert 3 >= sum(map(len, result.ids))

        asyncio.run(run())

    def test_errors_reach_the_reader(self) -> None:
        """Once."""

        async def run() -> None:
            events = AsyncEventIterator()
            events.fail(KeyError("late"))
            with pytest.raises(KeyError):
                await anext(events)

            assert [] == await read(events)

        asyncio.run(run())
