"""Ending a row with a string."""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import torch
from attrs import validators
from torch import Tensor

from .history import History
from .protocols import Ending
from .scores import Scores
from .stopping import Stop
from .text import Detokenizer


def _strings(value: str | Iterable[str]) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else tuple(value)
    if not strings or not all(isinstance(s, str) for s in strings):
        raise TypeError(f"'strings' must be a string or several: got {value!r}")
    if not all(strings):
        raise ValueError(f"'strings' must not be empty: got {value!r}")
    return strings


def completed(strings: Sequence[str], before: str, text: str) -> tuple[int, int] | None:
    """
    Find the string that ends first in what *text* has new since *before*; then the longest.

    Returns:
        Its index in *strings* and where it begins in *text*; None when there is none.
    """
    known = _agreement(before, text)
    found = []
    for index, string in enumerate(strings):
        start = text.find(string, max(0, known - len(string) + 1))
        if start >= 0:
            found.append((start + len(string), start, index))
    if not found:
        return None
    _, start, index = min(found)
    return index, start


def _agreement(before: str, text: str) -> int:
    if text.startswith(before):
        return len(before)
    # What looked like several bad bytes may have become one character.
    pairs = enumerate(zip(before, text, strict=False))
    return next((i for i, (one, other) in pairs if one != other), len(text))


def unfinished(detokenizer: Detokenizer) -> str:
    """What is held back of a row's text, less the character that may still be incomplete."""
    return detokenizer.peek().rstrip("\ufffd")


@attrs.define(eq=False)
class _Row:
    """What one row's generated ids say: a cache, made anew when they turn out to be others."""

    detokenizer: Detokenizer
    ids: list[int] = attrs.field(factory=list)
    tail: str = ""
    """The last of its final text: all that a match may begin in."""

    held: str = ""
    """What follows it, as it looks so far."""

    code: int = 0
    """The code of the newest token."""


@attrs.frozen(eq=False)
class StopStrings(Stop):
    """
    End a row when its new text contains any of *strings*, across token boundaries.

    The first to be complete wins; of several that one token completes, the one that ends
    first in the text, then the longest. The prompt is not searched.
    """

    strings: tuple[str, ...] = attrs.field(converter=_strings)
    tokenizer: Any = attrs.field(repr=False)
    hide: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    """Whether the text leaves the string out. The ids keep its tokens."""

    skip_special_tokens: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    _rows: dict[int, _Row] = attrs.field(factory=dict, init=False, repr=False)

    @tokenizer.validator
    def _decodes(self, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not callable(getattr(value, "decode", None)):
            raise TypeError(f"'tokenizer' must have a method decode: got {value!r}")

    @property
    def endings(self) -> tuple[Ending, ...]:
        """One for each string."""
        return tuple(Ending("stop_string", matched=s, hide=self.hide) for s in self.strings)

    def begin(self) -> "StopStrings":
        """A copy that has read nothing yet."""
        return attrs.evolve(self)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        codes = torch.zeros_like(history.length)
        for b, lengths in enumerate(history.length.tolist()):
            start = int(history.prompt[b])
            for i, length in enumerate(lengths):
                path = history.ids[b, min(i, history.ids.shape[1] - 1)]
                codes[b, i] = self._read(b, path[start:length].tolist())
        return codes

    def _read(self, row: int, ids: list[int]) -> int:
        """The code of the last of *ids*, the generated tokens of *row*."""
        seen = self._rows.get(row)
        if seen is None or seen.ids != ids[: len(seen.ids)]:
            seen = self._rows[row] = _Row(Detokenizer(self.tokenizer, self.skip_special_tokens))
        reach = max(map(len, self.strings)) - 1
        for token in ids[len(seen.ids) :]:
            before, final = seen.tail + seen.held, seen.tail + seen.detokenizer.push([token])
            seen.held = unfinished(seen.detokenizer)
            match = completed(self.strings, before, final + seen.held)
            seen.code = 0 if match is None else match[0] + 1
            seen.tail = final[max(0, len(final) - reach) :]
            seen.ids.append(token)
        return seen.code
