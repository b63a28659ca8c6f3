"""The output of each streamer adds up to the collected result, for any number of tokens per event."""

import asyncio
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from decodekit.decoding.results.events import AsyncEventStream, Event
from decodekit.decoding.results.streamers import forward
from decodekit.streaming import (
    BatchDisplay,
    Callback,
    FanOut,
    JsonLines,
    LatencyMeter,
    TextIterator,
    TextStreamer,
    TransformersStreamer,
    async_server_sent_events,
    server_sent_events,
)

from .scripted_events import TEXTS, events_of, prompts_of, result_of, tokenizer
from .terminal import terminal
from .test_sse import data_of

Texts = list[str]


def told(streamer: Any, events: Sequence[Event], texts: Sequence[str]) -> None:
    """As a generator tells a streamer."""
    assert list(events) == list(forward(iter(events), streamer, prompts_of(texts)))


def rows_of(lines: Sequence[str], rows: int) -> Texts:
    """The texts behind labels ``[0] ``."""
    found: list[list[str]] = [[] for _ in range(rows)]
    for line in lines:
        label, _, text = line.partition(" ")
        found[int(label[1:-1])].append(text)
    return ["\n".join(row) for row in found]


def by_row(dicts: Sequence[dict[str, Any]], rows: int) -> Texts:
    return ["".join(d["text"] for d in dicts if d.get("row") == row) for row in range(rows)]


def text_streamer(events: Sequence[Event], texts: Sequence[str]) -> Texts:
    file = io.StringIO()
    told(TextStreamer(file), events, texts)
    return [file.getvalue().removesuffix("\n")]


def text_iterator(events: Sequence[Event], texts: Sequence[str]) -> Texts:
    pieces = TextIterator(timeout=10, capacity=1000)
    told(pieces, events, texts)
    return ["".join(pieces)]


def callback(events: Sequence[Event], texts: Sequence[str]) -> Texts:
    heard: list[Event] = []
    told(Callback(heard.append), events, texts)
    return by_row([event.as_dict() for event in heard], len(texts))


def display_in_a_pipe(events: Sequence[Event], texts: Sequence[str]) -> Texts:
    file = io.StringIO()
    told(BatchDisplay(file), events, texts)
    return rows_of(file.getvalue().split("\n")[:-1], len(texts))


def display_in_a_terminal(events: Sequence[Event], texts: Sequence[str]) -> Texts:
    with terminal(columns=200) as one:
        told(BatchDisplay(one.file, interval=0), events, texts)
        return rows_of(one.show().text[:-1], len(texts))


def json_lines(events: Sequence[Event], texts: Sequence[str]) -> Texts:
    file = io.StringIO()
    told(JsonLines(file), events, texts)
    return by_row([json.loads(line) for line in file.getvalue().splitlines()], len(texts))


def fan_out(events: Sequence[Event], texts: Sequence[str]) -> Texts:
    one, other = io.StringIO(), io.StringIO()
    told(FanOut(BatchDisplay(one), LatencyMeter(), FanOut(BatchDisplay(other))), events, texts)

    assert one.getvalue() == other.getvalue()
    return rows_of(one.getvalue().split("\n")[:-1], len(texts))


def sse(events: Sequence[Event], texts: Sequence[str]) -> Texts:
    return by_row(data_of("".join(server_sent_events(events))), len(texts))


def async_sse(events: Sequence[Event], texts: Sequence[str]) -> Texts:
    async def source() -> AsyncEventStream:
        for event in events:
            yield event

    async def read() -> str:
        return "".join([message async for message in async_server_sent_events(source())])

    return by_row(data_of(asyncio.run(read())), len(texts))


def under_generate(events: Sequence[Event], texts: Sequence[str]) -> Texts:
    """As assisted decoding puts one row, and padded to the same lengths, several."""
    heard: list[Event] = []
    streamer = TransformersStreamer(Callback(heard.append), tokenizer(), eos_token_id=1)
    streamer.put(torch.tensor(prompts_of(texts)))
    per_event = max(1, *(len(event.ids) for event in events))
    for step in range(0, max(map(len, ids := result_of(events, texts).ids)) + 1, per_event):
        rows = [[*row, 1, *[0] * 1000][step : step + per_event] for row in ids]
        streamer.put(torch.tensor(rows))
    streamer.end()
    return by_row([event.as_dict() for event in heard], len(texts))


ONE_ROW: list[Callable[..., Texts]] = [text_streamer, text_iterator]
MANY_ROWS: list[Callable[..., Texts]] = [
    callback,
    display_in_a_pipe,
    display_in_a_terminal,
    json_lines,
    fan_out,
    sse,
    async_sse,
    under_generate,
]


def ids_of(shows: list[Callable[..., Texts]]) -> list[str]:
    return [show.__name__ for show in shows]


@pytest.mark.parametrize("per_event", range(1, 9))
class TestEveryStreamer:
    """From the same events."""

    @pytest.mark.parametrize("show", ONE_ROW + MANY_ROWS, ids=ids_of(ONE_ROW + MANY_ROWS))
    def test_one_row(self, show: Callable[..., Texts], per_event: int) -> None:
        """Each text by itself, the empty one among them."""
        for text in TEXTS:
            events = events_of([text], per_event)

            assert result_of(events, [text]).text == show(events, [text])

    @pytest.mark.parametrize("show", MANY_ROWS, ids=ids_of(MANY_ROWS))
    def test_several_rows(self, show: Callable[..., Texts], per_event: int) -> None:
        """All texts at once, which end at different times."""
        events = events_of(TEXTS, per_event)

        assert result_of(events, TEXTS).text == show(events, TEXTS)

    def test_the_meter_counts_every_token(self, per_event: int) -> None:
        """And for each row an event's wait but the first's."""
        events, meter = events_of(TEXTS, per_event), LatencyMeter()
        told(meter, events, TEXTS)
        ids = result_of(events, TEXTS).ids

        assert list(map(len, ids)) == [row.tokens for row in meter.rows]
        assert [max(0, -(-len(row) // per_event) - 1) for row in ids] == [len(row.gaps) for row in meter.rows]
