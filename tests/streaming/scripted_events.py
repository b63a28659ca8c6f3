"""Texts as events of a generation, with any number of tokens per event."""

import codecs
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from transformers import ByT5Tokenizer

from decodekit.decoding.protocols import Finish
from decodekit.decoding.results.events import Event
from decodekit.decoding.results.generation import Generation, collect
from decodekit.decoding.results.statistics import Statistics

FINISH = Finish("max_new_tokens")
FIRST_BYTE = 3
"""Tokens are the bytes of UTF-8; these ids are ByT5's."""

TEXTS = [
    "The quick brown fox, it's said, jumps.",
    "いろはにほへと ちりぬるを",
    "",
    "키스의 고유조건은\nเป็นมนุษย์\n\n👩‍👩‍👧‍👦 waves 👋🏽 at 🇯🇵",
    "def f(x):\n        return [i ** 2 for i in range(x)]  # é!",
]


@functools.cache
def tokenizer() -> Any:
    """Bytes to text."""
    return ByT5Tokenizer()


def row_events(row: int, text: str, per_event: int) -> Iterator[Event]:
    """One row; a character that is not whole yet is held back."""
    ids = [byte + FIRST_BYTE for byte in text.encode()]
    utf8 = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, max(1, len(ids)), per_event):
        some = tuple(ids[start : start + per_event])
        last = start + per_event >= len(ids)
        piece = utf8.decode(bytes(i - FIRST_BYTE for i in some), final=last)
        yield Event(row, some, piece, FINISH if last else None)


def events_of(texts: Sequence[str], per_event: int) -> list[Event]:
    """Events of all rows, alternating until each has ended."""
    rows = [row_events(row, text, per_event) for row, text in enumerate(texts)]
    turns = itertools.zip_longest(*rows)
    return [event for turn in turns for event in turn if event is not None]


def prompts_of(texts: Sequence[str]) -> list[list[int]]:
    return [[7, 8 + row] for row in range(len(texts))]


def result_of(events: Sequence[Event], texts: Sequence[str]) -> Generation:
    return collect(events, prompts_of(texts), Statistics())


@attrs.define
class Source:
    """Events that may raise after the last, and record whether they were closed."""

    events: Sequence[Event]
    error: BaseException | None = None
    closed: bool = False

    def __call__(self) -> Iterator[Event]:
        try:
            yield from self.events
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


@attrs.define
class Recorder:
    """Records its calls; raises at the event *at*."""

    error: BaseException | None = None
    at: int = 0
    told: list[Any] = attrs.field(factory=list)

    def begin(self, prompts: list[list[int]]) -> None:
        self.told.append(prompts)

    def put_event(self, event: Event) -> None:
        self.told.append(event)
        if self.error is not None and sum(isinstance(one, Event) for one in self.told) > self.at:
            raise self.error

    def end(self) -> None:
        self.told.append("end")

    def fail(self, error: BaseException) -> None:
        self.told.append(("fail", error))

    @property
    def events(self) -> list[Event]:
        return [one for one in self.told if isinstance(one, Event)]

    @property
    def last_words(self) -> list[Any]:
        """Ends and failures; must be exactly one."""
        return [one for one in self.told if one == "end" or isinstance(one, tuple)]
