"""Guessing by copying, from any length of match."""

import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from attrs import validators
from numpy.typing import NDArray

from ...decoding.history import History
from ...decoding.protocols import Draft, SamplesTokens
from ...decoding.validation import a_whole_number, as_list, is_whole
from .running_texts import RunningTexts
from .suffix_index import SuffixIndex

Ints = NDArray[np.int64]
Sequences = tuple[tuple[int, ...], ...]


@attrs.frozen(eq=False)
class _Match:
    """The end of a text, found somewhere before or elsewhere."""

    length: int
    follows: list[int]
    """What stood behind it."""


class _Corpus:
    """
    Finished texts, one after the other.

    Nothing follows a sequence's last token, so a match must not hold it: there the index has
    -1, which is no token of any text.
    """

    def __init__(self, sequences: Sequences) -> None:
        self.tokens = [token for sequence in sequences for token in sequence]
        self.ends = list(itertools.accumulate(map(len, sequences)))
        inner = (token for sequence in sequences if sequence for token in (*sequence[:-1], -1))
        self.index = SuffixIndex(inner)
        # All noted beforehand: afterwards a corpus is only read, by any number of threads.
        self.index.latest(0, len(self.tokens))

    def match(self, state: int, length: int, budget: int) -> _Match:
        """What stood behind *state*, up to *budget* tokens and not beyond the sequence."""
        start = self.index.latest(state, 0)
        end = self.ends[bisect.bisect_right(self.ends, start)]
        return _Match(length, self.tokens[start : min(end, start + budget)])


@attrs.define(eq=False)
class _Text:
    """A running text: its own index, and how much of its end the corpus holds."""

    taken: Ints = attrs.field(factory=lambda: np.empty(0, dtype=np.int64))
    index: SuffixIndex = attrs.field(factory=SuffixIndex)
    elsewhere: tuple[int, int] = (0, 0)
    """State and length, as the corpus's index knows it."""

    def go_on(self, ids: Ints, corpus: _Corpus | None) -> None:
        """Take what *ids* have more."""
        for token in ids[len(self.taken) :].tolist():
            self.index.append(token)
            if corpus is not None:
                self.elsewhere = corpus.index.follow(*self.elsewhere, token)
        # A copy: the loop goes on writing into its history.
        self.taken = ids.copy()

    def match(self, budget: int) -> _Match:
        """What stood behind the end of the text the time before."""
        length, end = self.index.repeated()
        # What is copied may reach the end of the text: then it goes on with the copy.
        circle = itertools.cycle(self.index.tokens[end : end + budget]) if length else iter(())
        return _Match(length, list(itertools.islice(circle, budget)))


def _as_sequences(corpus: Any) -> Sequences:
    if corpus is None:
        return ()
    rule = "'corpus' must be token ids >= 0, or lists of them"
    if isinstance(corpus, str) or not isinstance(corpus, Iterable):
        raise TypeError(f"{rule}: got {corpus!r}")
    listed = [as_list(part) for part in corpus]
    parts = [listed] if all(map(is_whole, listed)) else listed
    for part in parts:
        if not isinstance(part, Sequence) or not all(map(is_whole, part)):
            raise TypeError(f"{rule}: got {part!r}")
        if any(token < 0 for token in part):
            raise ValueError(f"{rule}: got {min(part)}")
    return tuple(tuple(int(token) for token in part) for part in parts)


@attrs.frozen(eq=False)
class SuffixAutomaton:
    """
    Guess that what followed these tokens before will follow them again, for matches of any length.

    The longest suffix of the row that occurred earlier in it, prompt included, or in *corpus*
    is looked up, at its latest occurrence; what stood behind that is the guess. Of the two
    matches the longer one counts, the row's own if they are equal. Where the copy reaches the
    row's end it goes on with itself, so a text that goes in circles is guessed as far as the
    budget goes.

    Like :class:`~decodekit.speculation.PromptLookup` without a limit to the n-gram, in amortised
    constant time for a new token instead of a scan: the suffix automaton of each row is kept, and
    extended. To find it, the row is compared with the texts that are known, as arrays. A row that
    continues none of them is indexed anew, some microseconds a token.

    Hu et al., 2024, `SAM Decoding: Speculative Decoding via Suffix Automaton
    <https://arxiv.org/abs/2411.10666>`_; there a state keeps its first occurrence.
    """

    corpus: Sequences = attrs.field(default=None, converter=_as_sequences, repr=lambda c: f"<{len(c)}>")
    """
    Other texts to copy from: ids, or lists of ids; None for none. They are indexed when this is
    made, at about a kilobyte a token. No match reaches from one into the next.
    """

    min_match: int = attrs.field(default=1, validator=[a_whole_number, validators.ge(1)])
    """The shortest match that is believed. 2 or more guesses less often and is right more often."""

    _elsewhere: _Corpus | None = attrs.field(init=False, repr=False)
    _texts: RunningTexts[_Text] = attrs.field(factory=RunningTexts, init=False, repr=False)

    @_elsewhere.default
    def _index_the_corpus(self) -> _Corpus | None:
        return _Corpus(self.corpus) if any(self.corpus) else None

    def propose(self, history: History, budget: torch.Tensor, sample: SamplesTokens) -> Draft:
        """Guess up to *budget* tokens ``[batch]`` of each row."""
        ids = torch.full((len(budget), int(budget.max())), -1)
        for row, match in self._matches(history, budget).items():
            ids[row, : len(match.follows)] = torch.tensor(match.follows, dtype=torch.int64)
        return Draft(ids)

    def evidence(self, history: History, budget: torch.Tensor) -> torch.Tensor:
        """How long the match behind each row's guess is, ``[batch]`` int64; 0 where there is no guess."""
        lengths = torch.zeros_like(budget)
        for row, match in self._matches(history, budget).items():
            lengths[row] = match.length
        return lengths

    def _matches(self, history: History, budget: torch.Tensor) -> dict[int, _Match]:
        """What there is to copy, by row."""
        matches, texts = {}, []
        for row in budget.nonzero().flatten().tolist():
            ids = history.before(row, 0).numpy()
            text = self._texts.take(ids) or _Text()
            text.go_on(ids, self._elsewhere)
            match = self._longest(text, int(budget[row]))
            if match.length >= self.min_match:
                matches[row] = match
            texts.append(text)
        # Not in a finally: what an error interrupted has taken nobody knows what.
        self._texts.put(texts)
        return matches

    def _longest(self, text: _Text, budget: int) -> _Match:
        own = text.match(budget)
        if self._elsewhere is None or text.elsewhere[1] <= own.length:
            return own
        return self._elsewhere.match(*text.elsewhere, budget)
