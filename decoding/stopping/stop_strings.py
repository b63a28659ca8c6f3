"""Stop strings."""

import sys
from collections.abc import Iterable
from typing import Any

import attrs
import numpy as np
import torch
from attrs import validators
from numpy.typing import NDArray
from torch import Tensor

from ..history import History
from ..optional_protocols import TokenCode, has_short_cuts
from ..protocols import Finish
from ..scores import Scores
from ..text.detokenizer import Detokenizer
from ..text.tokenizer import common_prefix_length, special_tokens
from ..text.tokenizer_check import a_tokenizer
from ..validation import is_iterable
from .aho_corasick import AhoCorasick
from .composition import Stop


def _strings(value: str | Iterable[str]) -> tuple[str, ...]:
    several = tuple(value) if is_iterable(value) else ()
    strings = (value,) if isinstance(value, str) else several
    if not strings or not all(isinstance(s, str) for s in strings):
        raise TypeError(f"'strings' must be a string or several: got {value!r}")
    if not all(strings):
        raise ValueError(f"'strings' must not be empty: got {value!r}")
    return strings


@attrs.frozen(eq=False)
class _Search:
    """Strings that are searched in one decoding of the ids."""

    detokenizer: Detokenizer
    strings: tuple[str, ...]
    codes: tuple[int, ...]
    """The code of each string."""

    machine: AhoCorasick


_NONE = (-1, 0, 0)
"""The result of a token that completes no string."""


@attrs.define(eq=False)
class _Text:
    """One decoding of one row's ids, as far as they are searched."""

    search: _Search
    detokenizer: Detokenizer
    state: int = 0
    """The automaton's state after the final text, while text is held."""

    held: str = ""
    """The held text after the final text, so far."""

    ahead: int = 0
    """The automaton's state after the held text."""

    def read(self, token: int) -> tuple[int, int, int]:
        """
        Take the next token.

        Returns:
            Of the first string that it completes, the longest of several that end there: the characters of
            the text behind it, its length, and its code; 0 for a code, and the least of all, if none.
        """
        machine, first = self.search.machine, _NONE
        final, before = self.detokenizer.push([token]), self.held
        self.held = self.detokenizer.preview()
        text = final + self.held
        known = common_prefix_length(before, text)
        # Usually the held text is still held, or final, and need not be read again. Otherwise a
        # character turned out to be invalid bytes, for example.
        unchanged = known == len(before) and not 0 < len(final) < known
        start, state = (known, self.ahead) if unchanged else (0, self.state)
        for position in range(start, len(text)):
            if position == len(final):
                self.state = state
            state = machine.step(state, text[position])
            found = machine.found[state]
            if found is not None and position >= known and first is _NONE:
                length, code = len(self.search.strings[found]), self.search.codes[found]
                first = (len(text) - 1 - position, length, code)
        self.ahead = state
        return first


@attrs.define(eq=False)
class _Row:
    """The text of one row's generated ids: a cache, rebuilt when the ids change."""

    texts: tuple[_Text, ...]
    ids: bytearray = attrs.field(factory=bytearray)
    """As raw bytes, which compare fastest."""

    code: int = 0
    """The code of the newest token."""

    def read(self, token: int) -> None:
        """Take the next token."""
        # Each text reads every token. The string that ends first counts, then the longest.
        _, _, self.code = max(text.read(token) for text in self.texts)


@has_short_cuts
@attrs.frozen(eq=False)
class StopStrings(Stop):
    """
    End a row when its new text contains any of *strings*, across token boundaries.

    The first to be complete wins; of several that one token completes, the one that ends
    first in the text, then the longest. The prompt is not searched.

    A string that is a special token (``"<|im_end|>"``), or contains one, is searched in the text with special
    tokens, whether or not :attr:`skip_special_tokens` leaves them out elsewhere. Hiding it leaves the other
    characters of such a string in the text.
    """

    strings: tuple[str, ...] = attrs.field(converter=_strings)
    tokenizer: Any = attrs.field(repr=False, validator=a_tokenizer)
    hide: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    """Whether the string is left out of the text. The ids keep its tokens."""

    skip_special_tokens: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    _rows: dict[int, _Row] = attrs.field(factory=dict, init=False, repr=False)
    _searches: tuple[_Search, ...] = attrs.field(init=False, repr=False)

    @_searches.default
    def _searches_of_the_strings(self) -> tuple[_Search, ...]:
        # Validates the tokenizer, before anything else is asked of it.
        usual = Detokenizer(self.tokenizer, self.skip_special_tokens)
        special = special_tokens(self.tokenizer) if self.skip_special_tokens else ()
        groups: dict[bool, list[int]] = {}
        for index, string in enumerate(self.strings):
            groups.setdefault(any(token in string for token in special), []).append(index)
        return tuple(
            _Search(
                Detokenizer(self.tokenizer, skip_special_tokens=False) if has_special else usual,
                strings := tuple(self.strings[index] for index in indices),
                tuple(index + 1 for index in indices),
                AhoCorasick.of(strings),
            )
            for has_special, indices in groups.items()
        )

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One for each string."""
        return tuple(Finish("stop_string", matched=s, hide=self.hide) for s in self.strings)

    def begin(self) -> "StopStrings":
        """A fresh copy for one run."""
        return attrs.evolve(self)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        paths, prompts = history.ids.numpy(), history.prompt.tolist()
        codes = [
            [
                self._read(b, paths[b, min(i, paths.shape[1] - 1), prompts[b] : length])
                for i, length in enumerate(lengths)
            ]
            for b, lengths in enumerate(history.length.tolist())
        ]
        return torch.tensor(codes)

    def by_token(self) -> TokenCode:
        """The code of one token."""
        return self._code

    def _code(self, token: int, length: int, prompt: int, row: int) -> int:
        """The code of the *row*'s next *token*; if a token is told again, those after it are forgotten."""
        seen, size = self._rows.get(row), np.dtype(np.int64).itemsize
        before = (length - prompt - 1) * size
        if seen is None or len(seen.ids) != before:
            earlier = b"" if seen is None else seen.ids[:before]
            if len(earlier) != before:
                raise ValueError(f"'token' must follow those that were told: got token {token} at {length}")
            seen = self._begun(row)
            self._take(seen, np.frombuffer(earlier, np.int64))
        seen.read(token)
        seen.ids += token.to_bytes(size, sys.byteorder, signed=True)
        return seen.code

    def _read(self, row: int, ids: NDArray[np.int64]) -> int:
        """The code of the last of *ids*, the generated tokens of *row*."""
        seen = self._rows.get(row)
        if seen is None or seen.ids != ids[: len(seen.ids) // ids.itemsize].tobytes():
            seen = self._begun(row)
        self._take(seen, ids[len(seen.ids) // ids.itemsize :])
        return seen.code

    def _begun(self, row: int) -> _Row:
        begun = self._rows[row] = _Row(
            tuple(_Text(search, search.detokenizer.another()) for search in self._searches)
        )
        return begun

    def _take(self, seen: _Row, new: NDArray[np.int64]) -> None:
        for token in new.tolist():
            seen.read(token)
        seen.ids += new.tobytes()
