"""
Question: how long does a token take from its choice to its text at the consumer.

    python benchmarks/streaming.py [--tokens 2000] [--step 0.002] [--spin] [--json FILE]

A selection notes the time right after it chose, and the consumer the time when it has the event
or the piece with that token's text: in between lie the stop condition, the text and the way to
the consumer. The decoder says a text token by token, one a step, and takes --step seconds for
each, asleep as a device would have it, or (--spin) busy in the interpreter, which is the worst
case for another thread: it has to wait for the interpreter's lock. The tokenizer is the bundled
byte-level one, with two stop strings that do not occur; tokens without text of their own, the
first halves of a character, are left out.
"""

import argparse
import asyncio
import pathlib
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers import AutoTokenizer

from decodekit.bench.report import Bar, Report, Table, finish
from decodekit.decoding import DecoderShape, Generator, Greedy, History, MaxNewTokens, StopStrings
from decodekit.streaming import AsyncEventIterator, AsyncTextIterator, EventIterator, TextIterator

TOKENIZER = pathlib.Path(__file__).parents[1] / "examples" / "pair" / "target"
TEXT = '''def double(values):
    """Twice each of *values*: 2·x — «naïve»."""
    return [2 * value for value in values]

'''
STOP_STRINGS = ("<|never|>", "\n\n\n\n")
UNCOUNTED = 50
"""The first tokens find everything cold."""
GOAL = 200.0
"""Microseconds at the median that a token may take."""


@attrs.define(eq=False)
class Recitation:
    """A decoder that says given tokens, one a step, and takes its time."""

    ids: list[int]
    vocab_size: int
    seconds: float
    spins: bool
    shape: DecoderShape = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.shape = DecoderShape(1, len(self.ids) + 1, self.vocab_size, (1,), 1)

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """One column, whatever the cache holds."""
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
class Timed:
    """Greedy, and when it chose."""

    chosen: list[float] = attrs.field(factory=list)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Choose, then look at the clock."""
        ids = Greedy()(logits, history)
        self.chosen.append(time.perf_counter())
        return ids


@attrs.define(eq=False)
class Arrivals:
    """When the consumer had how many characters."""

    characters: int = 0
    at: dict[int, float] = attrs.field(factory=dict)

    def note(self, text: str | None) -> None:
        """Take a piece."""
        now = time.perf_counter()
        if text:
            self.characters += len(text)
            self.at[self.characters] = now


def by_stream(generator: Generator, prompt: list[int], note: Callable[[str | None], None]) -> None:
    for event in generator.stream(prompt):
        note(event.text)


def by_text_iterator(generator: Generator, prompt: list[int], note: Callable[[str | None], None]) -> None:
    with TextIterator() as pieces:
        threading.Thread(target=generator, args=(prompt,), kwargs={"streamer": pieces}).start()
        for piece in pieces:
            note(piece)


def by_event_iterator(generator: Generator, prompt: list[int], note: Callable[[str | None], None]) -> None:
    with EventIterator() as events:
        threading.Thread(target=generator, args=(prompt,), kwargs={"streamer": events}).start()
        for event in events:
            note(event.text)


def by_async_text_iterator(
    generator: Generator, prompt: list[int], note: Callable[[str | None], None]
) -> None:
    async def run() -> None:
        async with AsyncTextIterator() as pieces:
            generation = asyncio.create_task(asyncio.to_thread(generator, prompt, streamer=pieces))
            async for piece in pieces:
                note(piece)
            await generation

    asyncio.run(run())


def by_async_event_iterator(
    generator: Generator, prompt: list[int], note: Callable[[str | None], None]
) -> None:
    async def run() -> None:
        async with AsyncEventIterator() as events:
            generation = asyncio.create_task(asyncio.to_thread(generator, prompt, streamer=events))
            async for event in events:
                note(event.text)
            await generation

    asyncio.run(run())


def by_astream(generator: Generator, prompt: list[int], note: Callable[[str | None], None]) -> None:
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


def microseconds(way: Callable[..., None], tokens: int, step: float, spins: bool) -> list[float]:
    """From choice to consumer, token by token."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    once = tokenizer.encode(TEXT, add_special_tokens=False)
    ids = (once * (tokens // len(once) + 1))[:tokens]
    selection, arrivals = Timed(), Arrivals()
    generator = Generator(
        Recitation(ids, len(tokenizer), step, spins),
        selection=selection,
        stop=StopStrings(STOP_STRINGS, tokenizer) | MaxNewTokens(tokens),
        tokenizer=tokenizer,
    )
    way(generator, [ids[0]], arrivals.note)
    spent, written = [], ""
    for i, chosen in enumerate(selection.chosen):
        text = tokenizer.decode(ids[: i + 1])
        if len(text) > len(written) and not text.endswith("\ufffd"):
            written = text
            # What was held for want of a character's last byte came with a later token.
            if len(text) in arrivals.at and i >= UNCOUNTED:
                spent.append(1e6 * (arrivals.at[len(text)] - chosen))
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--step", type=float, default=0.002)
    parser.add_argument("--spin", action="store_true")
    parser.add_argument("--way", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    torch.set_num_threads(1)

    kind = "busy" if args.spin else "asleep"
    results: list[dict[str, Any]] = []
    for name in args.way:
        spent = sorted(microseconds(WAYS[name], args.tokens, args.step, args.spin))
        hundredths = statistics.quantiles(spent, n=100)
        median, p95, p99 = statistics.median(spent), hundredths[94], hundredths[98]
        results.append({"way": name, "tokens": len(spent), "median_us": median, "p95_us": p95, "p99_us": p99})
    keys = ("way", "tokens", "median_us", "p95_us", "p99_us")
    rows = [[found[key] for key in keys] for found in results]
    finish(
        Report(
            benchmark="streaming-spin" if args.spin else "streaming",
            question="How long does a token take from its choice to its text at the consumer?",
            settings={"tokens": args.tokens, "ms a step": 1e3 * args.step, "decoder": kind, "threads": 1},
            tables=[
                Table("Microseconds from choice to consumer", ("way", "tokens", "median", "p95", "p99"), rows)
            ],
            bars=[Bar(found["way"], found["median_us"], "<=", GOAL, " µs") for found in results],
            results=results,
        ),
        args.json,
    )


if __name__ == "__main__":
    main()
