"""10,000 random texts in twelve scripts through every streamer, with one to eight tokens per event."""

import functools
import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

from decodekit.decoding import Detokenizer, Event
from decodekit.decoding.results.row_text import RowText
from decodekit.streaming import Callback, TransformersStreamer
from decodekit.streaming.terminal_text import harmless

from ..texts_in_scripts import Case, cases
from .scripted_events import FINISH
from .test_every_streamer import (
    MANY_ROWS,
    ONE_ROW,
    Texts,
    display_in_a_pipe,
    fan_out,
    ids_of,
    under_generate,
)

TEXTS, ROWS = 10_000, 8
SHOWS = [show for show in MANY_ROWS if show is not under_generate and "terminal" not in show.__name__]
"""Generate's ids have a test of their own, and terminals wrap lines."""


def row_of(row: int, case: Case) -> Iterator[Event]:
    """The events of one row."""
    text = RowText(Detokenizer(case.tokenizer, case.skip_special_tokens))
    outputs = list(case.chunks()) or [[]]
    for ids, last in itertools.zip_longest(outputs, [None] * (len(outputs) - 1), fillvalue=FINISH):
        yield Event(row, tuple(ids), text.push(ids, last), last)


def as_lines(text: str) -> str:
    """What a display shows of a text: whole lines, and control characters by their pictures."""
    return harmless(text.replace("\r\n", "\n")).removesuffix("\n")


@functools.cache
def batches() -> list[tuple[list[Event], Texts]]:
    """The events of several rows that take turns, and what they add up to."""
    found = []
    texts = cases(TEXTS)
    while batch := list(itertools.islice(texts, ROWS)):
        turns = itertools.zip_longest(*(row_of(row, case) for row, case in enumerate(batch)))
        events = [event for turn in turns for event in turn if event is not None]
        found.append((events, [case.text for case in batch]))
    return found


@pytest.mark.xdist_group("texts in scripts")
class TestEveryStreamer:
    """What is shown is the decode of the ids."""

    @pytest.mark.mostly_slow(every=6)
    @pytest.mark.parametrize("show", SHOWS, ids=ids_of(SHOWS))
    def test_several_rows(self, show: Callable[..., Texts]) -> None:
        """Eight at a time."""
        shown = as_lines if show in (display_in_a_pipe, fan_out) else str
        for events, texts in batches():
            assert list(map(shown, texts)) == show(events, texts)

    @pytest.mark.parametrize("show", ONE_ROW, ids=ids_of(ONE_ROW))
    def test_one_row(self, show: Callable[..., Texts]) -> None:
        """One after another."""
        for events, texts in batches():
            for row, text in enumerate(texts):
                own = [Event(0, event.ids, event.text, event.finish) for event in events if event.row == row]

                assert [text] == show(own, [text])

    @pytest.mark.slow
    def test_under_generate(self) -> None:
        """As ids that transformers puts."""
        for case in cases(TEXTS):
            heard: list[Event] = []
            streamer = TransformersStreamer(
                Callback(heard.append), case.tokenizer, (), skip_special_tokens=case.skip_special_tokens
            )
            streamer.put(torch.tensor([[0]]))
            for ids in case.chunks():
                streamer.put(torch.tensor([ids]))
            streamer.end()

            assert case.text == "".join(event.text or "" for event in heard), case
