"""Closing a generation: at most one more forward, and the next call is correct."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.streaming import AsyncEventIterator, AsyncTextIterator, EventIterator, TextIterator
from decodekit.testing import ScriptedDecoder, last_token

PATIENCE = 10.0
"""Timeout in seconds."""

COUNT_UP = torch.eye(8).roll(1, dims=1)


class Counting(ScriptedDecoder):
    """Counts its forwards, and those that began after the reader left."""

    begun = 0
    left_at: int | None = None
    overlapped = False
    _inside = False

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        self.overlapped |= self._inside
        self._inside = True
        self.begun += 1
        time.sleep(0.001)
        logits = super().forward(ids, cache_pos)
        self._inside = False
        return logits

    def leave(self) -> None:
        """Mark the moment at which the reader leaves."""
        self.left_at = self.begun

    @property
    def after(self) -> int:
        """Number of forwards begun since."""
        assert self.left_at is not None
        return self.begun - self.left_at


@pytest.fixture
def decoder() -> Counting:
    return Counting(COUNT_UP, max_length=2048, line=last_token)


@pytest.fixture
def endless(decoder: Counting) -> Generator:
    """A generation far too long to finish."""
    backend = Tokenizer(models.WordLevel({str(i): i for i in range(8)}, unk_token="0"))
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    return Generator(decoder, stop=MaxNewTokens(2000), tokenizer=tokenizer)


def is_ready(decoder: Counting) -> bool:
    """Whether the next call is correct."""
    return [[4, 5, 6, 7, 0]] == Generator(decoder, stop=MaxNewTokens(5))([3]).ids


def in_a_thread(generator: Generator, streamer: Any) -> threading.Thread:
    thread = threading.Thread(target=generator, args=([1],), kwargs={"streamer": streamer})
    thread.start()
    return thread


class LeftError(Exception):
    """Raised by a consumer."""


def breaks_off(items: Any) -> None:
    for i, _ in enumerate(items):
        if i == 3:
            break


def raises(items: Any) -> None:
    with suppress(LeftError):
        for i, _ in enumerate(items):
            if i == 3:
                raise LeftError


def interrupts(items: Any) -> None:
    with suppress(KeyboardInterrupt):
        for i, _ in enumerate(items):
            if i == 3:
                raise KeyboardInterrupt


def closes(items: Any) -> None:
    for _ in range(4):
        next(items)
    items.close()


CONSUMERS = [breaks_off, raises, interrupts, closes]


@pytest.mark.parametrize("consume", CONSUMERS)
class TestOtherThreads:
    @pytest.mark.parametrize("iterator", [TextIterator, EventIterator])
    @pytest.mark.parametrize("options", [{"capacity": 1}, {}, {"capacity": 2, "when_full": "merge"}], ids=str)
    def test_decoding_stops(
        self,
        decoder: Counting,
        endless: Generator,
        iterator: Any,
        options: dict[str, Any],
        consume: Callable[[Any], None],
    ) -> None:
        """Whether the generation waits for room just then, or decodes."""
        items = iterator(timeout=PATIENCE, **options)
        thread = in_a_thread(endless, items)
        consume(items)
        decoder.leave()
        thread.join(PATIENCE)

        assert not thread.is_alive()
        assert 1 >= decoder.after
        assert is_ready(decoder)


@pytest.mark.parametrize("consume", CONSUMERS)
def test_a_stream_decodes_no_more(
    decoder: Counting, endless: Generator, consume: Callable[[Any], None]
) -> None:
    """Not even one forward."""
    consume(endless.stream([1]))
    decoder.leave()

    assert 0 == decoder.after
    assert is_ready(decoder)


class TestEventLoops:
    """The same for tasks."""

    @pytest.mark.parametrize("way", ["break", "raise", "cancel", "timeout", "aclose"])
    @pytest.mark.parametrize("kind", ["astream", "text", "events", "full", "merge"])
    def test_decoding_stops(self, decoder: Counting, endless: Generator, kind: str, way: str) -> None:
        """Breaking off, raising, a cancel, a time-out and ``aclose()``."""

        async def consume(items: Any) -> None:
            count = 0
            async for _ in items:
                count += 1
                if count == 4 and way != "timeout":
                    if way == "break":
                        break
                    if way == "raise":
                        raise LeftError
                    if way == "cancel":
                        task = asyncio.current_task()
                        assert task is not None
                        task.cancel()
                    if way == "aclose":
                        # An asynchronous generator cannot be closed from within a loop over it.
                        if kind == "astream":
                            break
                        await items.aclose()

        async def run() -> None:
            items: Any = {
                "text": AsyncTextIterator,
                "events": AsyncEventIterator,
                "full": lambda: AsyncTextIterator(capacity=1),
                "merge": lambda: AsyncTextIterator(capacity=2, when_full="merge"),
                "astream": lambda: endless.astream([1]),
            }[kind]()
            if kind != "astream":
                generation = asyncio.create_task(asyncio.to_thread(endless, [1], streamer=items))
            with suppress(LeftError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(0.03 if way == "timeout" else None):
                    await asyncio.create_task(consume(items))
            # A loop that is left over an asynchronous generator is closed by a task of the event loop.
            await asyncio.sleep(0.001)
            decoder.leave()
            if kind == "astream":
                await items.aclose()
            else:
                await asyncio.wait_for(generation, PATIENCE)

        asyncio.run(run())

        assert 1 >= decoder.after
        assert is_ready(decoder)


class TestAbandoned:
    def test_streams_that_are_collected(self, decoder: Counting, endless: Generator) -> None:
        """During another thread's step, and in that thread: without a deadlock."""
        result: list[list[list[int]]] = []
        plain = Generator(decoder, stop=MaxNewTokens(8))
        thread = threading.Thread(target=lambda: result.append(plain([3]).ids))
        thread.start()
        while thread.is_alive():
            events = endless.stream([1, 2])
            next(events)
            cycle: list[Any] = [events]
            cycle.append(cycle)
            del events, cycle
            gc.collect()
        thread.join(PATIENCE)

        assert [[(4 + i) % 8 for i in range(8)]] == result[0]
        assert is_ready(decoder)
        assert not decoder.overlapped

    def test_a_reader_that_is_collected(self, decoder: Counting, endless: Generator) -> None:
        """Its loop goes with it, and the generation stops."""
        items = TextIterator(timeout=PATIENCE)
        thread = in_a_thread(endless, items)
        cycle: list[Any] = [iter(items)]
        cycle.append(cycle)
        next(cycle[0])
        del cycle
        gc.collect()
        decoder.leave()
        thread.join(PATIENCE)

        assert not thread.is_alive()
        assert 1 >= decoder.after

    def test_a_closed_iterator_costs_no_forward(self, decoder: Counting, endless: Generator) -> None:
        """It was closed before the start."""
        items = TextIterator()
        items.close()

        assert [[]] == endless([1], streamer=items).ids
        assert [] == decoder.forwards
