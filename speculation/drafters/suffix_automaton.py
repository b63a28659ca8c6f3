"""Drafting from suffix matches of any length."""

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch
from attrs import validators
from numpy.typing import NDArray

from ...decoding.history import History
from ...decoding.protocols import Draft, SamplesTokens
from ...decoding.validation import a_whole_number, as_list, is_iterable, is_whole
from .repeated_suffix import RepeatedSuffix, match_evidence
from .row_texts import row_texts
from .running_texts import RunningTexts
from .suffix_index import SuffixIndex

Ints = NDArray[np.int64]
Sequences = tuple[tuple[int, ...], ...]


@attrs.frozen(eq=False)
class _Match:
    """Earlier occurrence of the end of a text."""

    length: int
    follows: list[int]
    """Tokens after the occurrence."""

    evidence: int
    """Of :func:`~.repeated_suffix.match_evidence`."""


class _Corpus:
    """
    Concatenated finished texts and their index.

    No token follows a sequence's last one, so a match must not contain it: there the index has
    -1, which occurs in no text.
    """

    def __init__(self, sequences: Sequences) -> None:
        self.tokens = [token for sequence in sequences for token in sequence]
        self.ends = list(itertools.accumulate(map(len, sequences)))
        inner = (token for sequence in sequences if sequence for token in (*sequence[:-1], -1))
        self.index = SuffixIndex(inner)
        # Recorded eagerly: afterwards the index is read-only, and safe to share between threads.
        self.index.ends(0, len(self.tokens))

    def match(self, state: int, length: int, budget: int) -> _Match:
        """Up to *budget* tokens after *state*, within the sequence."""
        start, earlier = self.index.ends(state, 0)
        end = self.ends[bisect.bisect_right(self.ends, start)]
        match = RepeatedSuffix(length, start, earlier)
        follows = self.tokens[start : min(end, start + budget)]
        return _Match(length, follows, match_evidence(match, self.tokens))


@attrs.define(eq=False)
class _Text:
    """Running text: its own index, and the match of its end in the corpus."""

    tokens: Ints = attrs.field(factory=lambda: np.empty(0, dtype=np.int64))
    index: SuffixIndex = attrs.field(factory=SuffixIndex)
    corpus_match: tuple[int, int] = (0, 0)
    """State and match length in the corpus's index."""

    def extend(self, ids: Ints, corpus: _Corpus | None) -> None:
        """Append the new tokens of *ids*."""
        for token in ids[len(self.tokens) :].tolist():
            self.index.append(token)
            if corpus is not None:
                self.corpus_match = corpus.index.follow(*self.corpus_match, token)
        # Copied, as the loop keeps writing into its history.
        self.tokens = ids.copy()

    def match(self, budget: int) -> _Match:
        """Match of the end of the text in the text itself."""
        match, tokens = self.index.repeated(), self.index.tokens
        length, end, _ = match
        # Where the copied tokens reach the end of the text, they repeat.
        repeating = itertools.cycle(tokens[end : end + budget]) if length else iter(())
        follows = list(itertools.islice(repeating, budget))
        return _Match(length, follows, match_evidence(match, tokens))


def _as_sequences(corpus: Any) -> Sequences:
    if corpus is None:
        return ()
    rule = "'corpus' must be token ids >= 0, or lists of them"
    if isinstance(corpus, str) or not is_iterable(corpus):
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
    Draft the continuation of an earlier occurrence of the longest repeated suffix.

    The longest suffix of the row that occurred earlier in it, prompt included, or in *corpus*
    is looked up at its latest occurrence; the tokens after it are the draft. The longer of the two
    matches is used, the row's own if they are equal. Where the copied tokens reach the row's end
    they repeat, so a periodic text is drafted up to the budget.

    Like :class:`~decodekit.speculation.PromptLookup` without an n-gram limit, in amortised constant
    time per new token instead of a scan: each row's suffix automaton is kept and extended. Rows are
    matched to automata by array comparison of their tokens. A row that continues no known text is
    indexed from scratch, some microseconds per token.

    Hu et al., 2024, `SAM Decoding: Speculative Decoding via Suffix Automaton
    <https://arxiv.org/abs/2411.10666>`_; which keeps a state's first occurrence.
    """

    corpus: Sequences = attrs.field(default=None, converter=_as_sequences, repr=lambda c: f"<{len(c)}>")
    """
    Other texts to draft from: ids, or lists of ids; None for none. They are indexed on construction,
    at about a kilobyte per token. Matches do not span two texts.
    """

    min_match: int = attrs.field(default=1, validator=[a_whole_number, validators.ge(1)])
    """Shortest match to use. 2 or more drafts less often, with a higher acceptance rate."""

    _indexed_corpus: _Corpus | None = attrs.field(init=False, repr=False)
    _texts: RunningTexts[_Text] = attrs.field(factory=RunningTexts, init=False, repr=False)

    @_indexed_corpus.default
    def _index_the_corpus(self) -> _Corpus | None:
        return _Corpus(self.corpus) if any(self.corpus) else None

    def propose(self, history: History, budget: torch.Tensor, sample: SamplesTokens) -> Draft:
        """Propose up to *budget* tokens ``[batch]`` for each row."""
        counts = budget.tolist()
        ids = np.full((len(counts), max(counts)), -1)
        for row, match in self._matches(history, counts).items():
            ids[row, : len(match.follows)] = match.follows
        return Draft(torch.from_numpy(ids))

    def evidence(self, history: History, budget: torch.Tensor) -> torch.Tensor:
        """The :func:`.repeated_suffix.match_evidence` of each row, ``[batch]`` int64; 0 without a draft."""
        return self.foresee(history, budget)[0]

    def foresee(self, history: History, budget: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, and the first token of each row's draft, ``[batch]`` int64; -1 without one."""
        counts = [min(count, 1) for count in budget.tolist()]
        evidence, first_tokens = [0] * len(counts), [-1] * len(counts)
        for row, match in self._matches(history, counts).items():
            evidence[row], first_tokens[row] = match.evidence, match.follows[0]
        return torch.tensor(evidence), torch.tensor(first_tokens)

    def _matches(self, history: History, counts: Sequence[int]) -> dict[int, _Match]:
        """Matches by row, and as many tokens after them."""
        matches, texts = {}, []
        for row, ids in row_texts(history, counts):
            text = self._texts.take(ids) or _Text()
            text.extend(ids, self._indexed_corpus)
            match = self._longest(text, counts[row])
            if match.length >= self.min_match:
                matches[row] = match
            texts.append(text)
        # Not in a finally: after an error the texts' state is unknown.
        self._texts.put(texts, len(counts))
        return matches

    def _longest(self, text: _Text, budget: int) -> _Match:
        own = text.match(budget)
        if self._indexed_corpus is None or text.corpus_match[1] <= own.length:
            return own
        return self._indexed_corpus.match(*text.corpus_match, budget)
