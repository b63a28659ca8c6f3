"""The text of one row, up to and including the way it ends."""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from .protocols import Ending
from .stop_sequences import TokenSequence
from .stop_strings import completed, unfinished
from .text import Detokenizer


@attrs.define(eq=False)
class RowText:
    """
    Detokenise one row and leave out of its text what its ending hides.

    What may turn out to be hidden must not be shown before, so the end of the text is held back
    while it is the beginning of a hidden string or sequence of tokens, and no longer.

    Args:
        detokenizer: A fresh one.

        endings: Every ending that the row's stop condition can give.
    """

    detokenizer: Detokenizer
    endings: tuple[Ending, ...] = ()
    _partials: "list[_Partial]" = attrs.field(init=False, repr=False)
    # The newest ids, as long as they are the beginning of a hidden sequence: not detokenised yet.
    _sequences: "list[_Partial]" = attrs.field(init=False, repr=False)
    _waiting: list[int] = attrs.field(init=False, repr=False, factory=list)
    # How much of the text that is out a string may have begun in, and that text.
    _reach: int = attrs.field(init=False, repr=False)
    _tail: str = attrs.field(init=False, repr=False, default="")
    _held: str = attrs.field(init=False, repr=False, default="")

    @_partials.default
    def _partials_of_hidden_strings(self) -> "list[_Partial]":
        hidden = [ending for ending in self.endings if ending.hide]
        return [_Partial(string) for string in dict.fromkeys(_strings(hidden))]

    @_sequences.default
    def _partials_of_hidden_sequences(self) -> "list[_Partial]":
        hidden = (match for ending in self.endings if ending.hide for match in _parts(ending.matched))
        return [_Partial(match) for match in dict.fromkeys(hidden) if isinstance(match, TokenSequence)]

    @_reach.default
    def _reach_of_the_longest_string(self) -> int:
        return max(map(len, _strings(self.endings)), default=1) - 1

    def push(self, ids: Sequence[int], ending: Ending | None = None) -> str:
        """
        Take the row's next *ids* and return the text that has become final.

        Args:
            ids: One or a burst.

            ending: Set when the last of them ended the row: nothing is held any more. The stop
                string that ends first in the newest token's text cuts the text, before it when
                the ending hides it and else after it. Without one, a hidden token or sequence of
                tokens is left out.
        """
        if ending is not None:
            return self._end(self._waiting + list(ids), ending)
        new = self.detokenizer.push(self._decided(ids))
        for partial in self._partials:
            partial.feed(new)
        text = self._held + new
        final = len(text) - max((partial.length for partial in self._partials), default=0)
        self._held = text[final:]
        out = self._tail + text[:final]
        self._tail = out[max(0, len(out) - self._reach) :]
        return text[:final]

    def _decided(self, ids: Sequence[int]) -> list[int]:
        """The ids, now with *ids*, that no sequence may come to hide any more."""
        for partial in self._sequences:
            partial.feed(ids)
        known = self._waiting + list(ids)
        decided = len(known) - max((partial.length for partial in self._sequences), default=0)
        self._waiting = known[decided:]
        return known[:decided]

    def _end(self, ids: Sequence[int], ending: Ending) -> str:
        strings = list(_strings([ending]))
        if ending.hide and not strings:
            ids = ids[: max(0, len(ids) - max(map(_tokens, _parts(ending.matched)), default=0))]
        final = self._tail + self._held + self.detokenizer.push(ids[:-1])
        before = final + unfinished(self.detokenizer)
        text = final + self.detokenizer.push(ids[-1:]) + self.detokenizer.flush()
        match = completed(strings, before, text)
        if match is None:
            return text[len(self._tail) :]
        index, start = match
        return text[len(self._tail) : start if ending.hide else start + len(strings[index])]


def _strings(endings: Sequence[Ending]) -> Iterator[str]:
    for ending in endings:
        yield from (match for match in _parts(ending.matched) if isinstance(match, str) and match)


def _parts(matched: Any) -> Iterator[Any]:
    """The single matches: two conditions that end a row together (``a & b``) give a pair."""
    if isinstance(matched, tuple) and not isinstance(matched, TokenSequence):
        for match in matched:
            yield from _parts(match)
    else:
        yield matched


def _tokens(match: Any) -> int:
    """How many tokens *match* consists of; 0 if it is not one of tokens."""
    return len(match) if isinstance(match, TokenSequence) else int(isinstance(match, int))


@attrs.define(eq=False)
class _Partial:
    """
    How much of a string, or of a sequence of ids, the end of a text matches, the whole excepted.

    Knuth, Morris and Pratt, 1977, `Fast Pattern Matching in Strings
    <https://doi.org/10.1137/0206024>`_: amortised constant time per character.
    """

    _string: Sequence[object]
    length: int = attrs.field(init=False, default=0)
    # Of every beginning of the string, how much of its end is a shorter beginning.
    _borders: list[int] = attrs.field(init=False)

    @_borders.default
    def _borders_of_the_string(self) -> list[int]:
        borders = [0]
        for character in self._string[1:]:
            border = borders[-1]
            while border and self._string[border] != character:
                border = borders[border - 1]
            borders.append(border + (self._string[border] == character))
        return borders

    def feed(self, text: Sequence[object]) -> None:
        for character in text:
            while self.length and self._string[self.length] != character:
                self.length = self._borders[self.length - 1]
            self.length += self._string[self.length] == character
            if self.length == len(self._string):
                self.length = self._borders[-1]
