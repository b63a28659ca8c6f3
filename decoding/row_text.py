"""The text of one row, up to and including the way it ends."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import attrs

from .protocols import Ending
from .text import Detokenizer

_Items = TypeVar("_Items", str, tuple[int, ...])


def _as_tuple(hidden: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(hidden)


@attrs.define(eq=False)
class RowText:
    """
    Detokenise one row and leave out of its text what its ending hides.

    What may turn out to be hidden must not be shown before, so the end of the text is held back
    while it is the beginning of a hidden match, and no longer.

    Args:
        detokenizer: A fresh one.

        hidden: ``ending.matched`` of each hidden ending of the stop condition. Strings and tuples
            of ids are held back; single ids need not be.
    """

    detokenizer: Detokenizer
    hidden: tuple[Any, ...] = attrs.field(default=(), converter=_as_tuple)
    _ids: "_Held[tuple[int, ...]]" = attrs.field(init=False, repr=False)
    _text: "_Held[str]" = attrs.field(init=False, repr=False)
    _shown: list[str] = attrs.field(init=False, repr=False, factory=list)

    @_ids.default
    def _held_ids(self) -> "_Held[tuple[int, ...]]":
        return _Held((), [_Partial(match) for match in _parts(self.hidden) if isinstance(match, tuple)])

    @_text.default
    def _held_text(self) -> "_Held[str]":
        return _Held("", [_Partial(match) for match in _parts(self.hidden) if isinstance(match, str)])

    def push(self, ids: Sequence[int], ending: Ending | None = None) -> str:
        """
        Take the row's next *ids* and return the text that has become final.

        Args:
            ids: One or a burst.

            ending: Set when the last of them ended the row: nothing is held any more. The stop
                string that ends first in the newest token's text cuts the text, before it when
                the ending hides it and else after it. Hidden ids are left out.
        """
        if ending is None:
            text = self._text.push(self.detokenizer.push(self._ids.push(tuple(ids))))
            self._shown.append(text)
            return text
        matches = list(_parts((ending.matched,)))
        strings = [match for match in matches if isinstance(match, str)]
        undecoded = self._ids.release() + tuple(ids)
        if ending.hide and not strings:
            undecoded = undecoded[: len(undecoded) - _matched_ids(undecoded, matches)]
        earlier = self._text.release() + self.detokenizer.push(undecoded[:-1])
        newest = self.detokenizer.push(undecoded[-1:]) + self.detokenizer.flush()
        return self._cut(earlier, newest, strings, ending.hide)

    def close(self) -> str:
        """Return what was held, for a row that is left without an ending."""
        return self.push((), Ending("closed"))

    def _cut(self, earlier: str, newest: str, matches: list[str], hide: bool) -> str:
        # A match that is not hidden may have begun in text that is out.
        shown = self._end_of_shown(max(map(len, matches), default=1) - 1)
        text = shown + earlier + newest
        known = len(shown) + len(earlier)
        found = [(text.find(match, max(known + 1 - len(match), 0)), match) for match in matches]
        cuts = [start if hide else start + len(match) for start, match in found if start >= 0]
        return text[len(shown) : min(cuts, default=None)]

    def _end_of_shown(self, length: int) -> str:
        pieces: list[str] = []
        for piece in reversed(self._shown):
            if length <= 0:
                break
            pieces.append(piece[-length:])
            length -= len(piece)
        return "".join(reversed(pieces))


def _parts(matches: Iterable[Any]) -> Iterator[Any]:
    """The single matches in those of endings that took several conditions (``a & b``)."""
    for match in matches:
        if isinstance(match, tuple) and not all(isinstance(item, int) for item in match):
            yield from _parts(match)
        elif match not in ("", ()):
            yield match


def _matched_ids(ids: tuple[int, ...], matches: list[Any]) -> int:
    """How many at the end of *ids* were matched as ids."""
    lengths = [0]
    for match in matches:
        if isinstance(match, int | tuple):
            pattern = match if isinstance(match, tuple) else (match,)
            # The first ids of a sequence that was not announced may be out already.
            pattern = pattern[-len(ids) :]
            if ids[len(ids) - len(pattern) :] == pattern:
                lengths.append(len(pattern))
    return max(lengths)


@attrs.define(eq=False)
class _Held(Generic[_Items]):
    """Passes items on and keeps the longest end that could still become one of the patterns."""

    _kept: _Items
    _partials: "list[_Partial]"

    def push(self, items: _Items) -> _Items:
        for partial in self._partials:
            partial.feed(items)
        self._kept += items
        final = len(self._kept) - max((partial.length for partial in self._partials), default=0)
        passed, self._kept = self._kept[:final], self._kept[final:]
        return passed

    def release(self) -> _Items:
        kept, self._kept = self._kept, self._kept[:0]
        return kept


@attrs.define(eq=False)
class _Partial:
    """
    How much of a pattern the end of a sequence matches, the whole pattern excepted.

    Knuth, Morris and Pratt, 1977, `Fast Pattern Matching in Strings
    <https://doi.org/10.1137/0206024>`_: amortised constant time per item.
    """

    _pattern: Sequence[Any]
    length: int = attrs.field(init=False, default=0)
    # Of every beginning of the pattern, how much of its end is a shorter beginning.
    _borders: list[int] = attrs.field(init=False)

    @_borders.default
    def _borders_of_the_pattern(self) -> list[int]:
        borders = [0]
        for item in self._pattern[1:]:
            border = borders[-1]
            while border and self._pattern[border] != item:
                border = borders[border - 1]
            borders.append(border + (self._pattern[border] == item))
        return borders

    def feed(self, items: Sequence[Any]) -> None:
        for item in items:
            while self.length and self._pattern[self.length] != item:
                self.length = self._borders[self.length - 1]
            self.length += self._pattern[self.length] == item
            if self.length == len(self._pattern):
                self.length = self._borders[-1]
