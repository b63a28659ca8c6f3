"""Ending a row with a string."""

from collections.abc import Iterable
from typing import Any

import attrs
import torch
from torch import Tensor

from .history import History
from .protocols import Ending
from .stopping import Composable
from .text import Detokenizer


def _strings(value: str | Iterable[str]) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else tuple(value)
    if not strings or not all(isinstance(s, str) for s in strings):
        raise TypeError(f"'strings' must be a string or several: {value!r}")
    if not all(strings):
        raise ValueError(f"'strings' must not be empty: {value!r}")
    return strings


@attrs.define(eq=False)
class _Row:
    """What one row's generated ids say: a cache, made anew when they turn out to be others."""

    detokenizer: Detokenizer
    ids: list[int] = attrs.field(factory=list)
    tail: str = ""
    """The last of its text: all that a match may begin in."""

    code: int = 0
    """The code of the newest token."""


@attrs.frozen(eq=False)
class StopStrings(Composable):
    """
    End a row when its new text contains any of *strings*, across token boundaries.

    The first to be complete wins; of several that one token completes, the one that ends
    first in the text, then the longest. The prompt is not searched.
    """

    strings: tuple[str, ...] = attrs.field(converter=_strings)
    tokenizer: Any = attrs.field(repr=False)
    hide: bool = True
    """Whether the text leaves the string out. The ids keep its tokens."""

    skip_special_tokens: bool = True
    _rows: dict[int, _Row] = attrs.field(factory=dict, init=False, repr=False)

    @property
    def endings(self) -> tuple[Ending, ...]:
        """One for each string."""
        return tuple(Ending("stop_string", matched=s, hide=self.hide) for s in self.strings)

    def begin(self) -> "StopStrings":
        """A copy that has read nothing yet."""
        return attrs.evolve(self)

    def __call__(self, scores: Tensor, history: History) -> Tensor:
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
            text = seen.tail + seen.detokenizer.push([token])
            seen.ids.append(token)
            seen.code = self._match(text, len(seen.tail))
            seen.tail = text[len(text) - reach :] if reach < len(text) else text
        return seen.code

    def _match(self, text: str, known: int) -> int:
        """The code of the string that *text* completes beyond its first *known* characters."""
        found = []
        for code, string in enumerate(self.strings, start=1):
            at = text.find(string, max(0, known - len(string) + 1))
            if at >= 0:
                found.append((at + len(string), -len(string), code))
        return min(found)[-1] if found else 0
