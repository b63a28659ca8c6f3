"""
Question: how long does a token take from its sampling to its text at the consumer.

A sampler records the time right after it sampled, and the consumer the time when it has the event or the
piece with that token's text: the stop condition, the text and the transfer to the consumer lie between. The
decoder gives a text token by token, one a step, and takes --step seconds for each, asleep as during a
device's forward, or (--spin) busy in the interpreter, which is the worst case for another thread: it has to
wait for the interpreter's lock. The tokenizer is the bundled byte-level one, with two stop strings that do
not occur; tokens without text of their own, the first halves of a character, are left out.
"""

import argparse
import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import torch
from torch import Tensor
from transformers import AutoTokenizer

from ...decoding import DecoderShape, Generator, Greedy, History, MaxNewTokens, StopStrings
from ...streaming import AsyncEventIterator, AsyncTextIterator, EventIterator, TextIterator
from ..measuring.arguments import add_json
from ..measuring.report import Report, Threshold, finish
from ..measuring.tables import Table
from ..models.bundled_pair import pair_folder

TEXT = '''def double(values):
    """Twice each of *values*: 2·x — «naïve»."""
    return [2 * value for value in values]

'''
STOP_STRINGS = ("<|never|>", "\n\n\n\n")
UNCOUNTED = 50
"""First tokens, which run with cold caches."""
GOAL = 200.0
"""The largest median in microseconds."""


Note: TypeAlias = Callable[[str | None], None]
"""Takes a piece of text when the consumer has it."""


def by_stream(generator: Generator, prompt: list[int], note: Note) -> None:
    """``stream()`` in the same thread."""
    for event in generator.stream(prompt):
        note(event.text)


def by_text_iterator(generator: Generator, prompt: list[int], note: Note) -> None:
    """Text pieces from another thread."""
    with TextIterator() as pieces:
        threading.Thread(target=generator, args=(prompt,), kwargs={"streamer": pieces}).start()
        for piece in pieces:
            note(piece)


def by_event_iterator(generator: Generator, prompt: list[int], note: Note) -> None:
    """Events from another thread."""
    with EventIterator() as events:
        threading.Thread(target=generator, args=(prompt,), kwargs={"streamer": events}).start()
        for event in events:
            note(event.text)


def by_async_text_iterator(generator: Generator, prompt: list[int], note: Note) -> None:
    """Text pieces from another thread to an event loop."""

    async def run() -> None:
        async with AsyncTextIterator() as pieces:
            generation = asyncio.create_task(asyncio.to_thread(generator, prompt, streamer=pieces))
            async for piece in pieces:
                note(piece)
            await generation

    asyncio.run(run())


def by_async_event_iterator(generator: Generator, prompt: list[int], note: Note) -> None:
    """Events from another thread to an event loop."""

    async def run() -> None:
        async with AsyncEventIterator() as events:
            generation = asyncio.create_task(asyncio.to_thread(generator, prompt, streamer=events))
            async for event in events:
                note(event.text)
            await generation

    asyncio.run(run())


def by_astream(generator: Generator, prompt: list[int], note: Note) -> None:
    """``astream()`` in an event loop."""

    async def run() -> None:
        async for event in generator.astream(prompt):
            note(event.text)

    asyncio.run(run())


WAYS = {
    "for event in stream": by_stream,
    "TextIterator": by_text_iterator,
    "EventIterator": by_event_iterator,
    "AsyncTextIterator": by_async_text_iterator,
    "AsyncEventIterator": by_async_event_iterator,
    "async for event in astream": by_astream,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--tokens", type=int, default=1000)
    add("--step", type=float, default=0.002, metavar="SECONDS", help="of a forward (%(default)s)")
    add("--spin", action="store_true", help="forwards hold the interpreter's lock")
    add("--way", nargs="+", choices=list(WAYS), default=list(WAYS))
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Measure every way, and report."""
    torch.set_num_threads(1)
    results: list[dict[str, Any]] = []
    for name in options.way:
        spent = sorted(microseconds(WAYS[name], options.tokens, options.step, options.spin))
        hundredths = statistics.quantiles(spent, n=100)
        median, p95, p99 = statistics.median(spent), hundredths[94], hundredths[98]
        results.append({"way": name, "tokens": len(spent), "median_us": median, "p95_us": p95, "p99_us": p99})
    keys = ("way", "tokens", "median_us", "p95_us", "p99_us")
    rows = [[found[key] for key in keys] for found in results]
    columns = ("way", "tokens", "median", "p95", "p99")
    report = Report(
        benchmark="streaming-spin" if options.spin else "streaming",
        question="How long does a token take from its sampling to its text at the consumer?",
        settings={
            "tokens": options.tokens,
            "ms a step": 1e3 * options.step,
            "decoder": "busy" if options.spin else "asleep",
            "threads": 1,
        },
        tables=[Table("Microseconds from sampling to consumer", columns, rows)],
        thresholds=[Threshold(found["way"], found["median_us"], "<=", GOAL, " µs") for found in results],
        results=results,
    )
    finish(report, options.json)


def microseconds(
    way: Callable[[Generator, list[int], Note], None], tokens: int, step: float, spins: bool
) -> list[float]:
    """From sampling to consumer, token by token."""
    tokenizer = AutoTokenizer.from_pretrained(pair_folder() / "target")
    once = tokenizer.encode(TEXT, add_special_tokens=False)
    ids = (once * (tokens // len(once) + 1))[:tokens]
    sampler, arrivals = TimedGreedy(), Arrivals()
    generator = Generator(
        ScriptedText(ids, len(tokenizer), step, spins),
        sampler=sampler,
        stop=StopStrings(STOP_STRINGS, tokenizer) | MaxNewTokens(tokens),
        tokenizer=tokenizer,
    )
    way(generator, [ids[0]], arrivals.note)
    spent, written = [], ""
    for i, sampled_at in enumerate(sampler.times):
        text = str(tokenizer.decode(ids[: i + 1]))
        if len(text) > len(written) and not text.endswith("\ufffd"):
            written = text
            # Text held back for the last byte of a character came with a later token.
            if len(text) in arrivals.at and i >= UNCOUNTED:
                spent.append(1e6 * (arrivals.at[len(text)] - sampled_at))
    return spent


@attrs.define(eq=False)
class ScriptedText:
    """A decoder that gives a fixed text, one token a step of fixed duration."""

    ids: list[int]
    vocab_size: int
    seconds: float
    spins: bool
    shape: DecoderShape = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.shape = DecoderShape(1, len(self.ids) + 1, self.vocab_size, (1,), 1)

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """Logits of the next token of the text."""
        if self.spins:
            until = time.perf_counter() + self.seconds
            while time.perf_counter() < until:
                pass
        else:
            time.sleep(self.seconds)
        logits = torch.zeros(1, 1, self.vocab_size)
        logits[0, 0, self.ids[int(cache_pos[0])]] = 1.0
        return logits


@attrs.define(eq=False)
class TimedGreedy:
    """A greedy sampler that records when it sampled."""

    times: list[float] = attrs.field(factory=list)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Sample, then record the time."""
        ids = Greedy()(logits, history)
        self.times.append(time.perf_counter())
        return ids


@attrs.define(eq=False)
class Arrivals:
    """Times at which the consumer had a number of characters."""

    characters: int = 0
    at: dict[int, float] = attrs.field(factory=dict)

    def note(self, text: str | None) -> None:
        """Record a piece."""
        now = time.perf_counter()
        if text:
            self.characters += len(text)
            self.at[self.characters] = now
