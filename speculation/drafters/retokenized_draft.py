"""Guessing with a model of another tokenizer, by what it writes."""

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.cache.slots import Slots
from ...decoding.history import History
from ...decoding.protocols import Decoder, DecoderShape, Draft, SamplesTokens
from .draft_decoder import a_decoder, check_rows
from .translation import Ints, Translation
from .vocabulary import Vocabulary, a_tokenizer, characters, counterparts, ends_in_character

Bools = NDArray[np.bool_]

_CHUNK, _LONGEST_CHUNK = 32, 64
"""Tokens of the target, in a text with spaces and in one without."""

_MOST_DRAWN = 2
"""Tokens of the draft for each that is to be guessed; a draft that needs more is too slow to be of use."""


@attrs.frozen(eq=False)
class RetokenizedDraft:
    """
    Guess with *decoder*, a smaller model of another tokenizer, what it would write.

    The target's text is tokenized for the draft, which goes on from there greedily; what it
    writes is tokenized for the target. The two need not have a token in common. The draft's
    model is not touched.

    It cannot share the target's noise, which belongs to the tokens of the target's vocabulary: the
    higher the temperature, the fewer of its guesses stand, where :class:`CommonTokens` keeps most
    of them. Nor do the target's processors reach it.

    Timor et al., 2025, `Accelerating LLM Inference with Lossless Speculative Decoding Algorithms
    for Heterogeneous Vocabularies <https://arxiv.org/abs/2502.05202>`_: string-level exact match.
    """

    decoder: Decoder = attrs.field(validator=a_decoder)
    """Of at least as many rows as there are prompts. A row beyond its positions gets no draft."""

    draft_tokenizer: Any = attrs.field(repr=False, validator=a_tokenizer)
    """The draft's, a Hugging Face tokenizer."""

    tokenizer: Any = attrs.field(repr=False, validator=a_tokenizer)
    """The target's."""

    _draft: Vocabulary = attrs.field(init=False, repr=False)
    _target: Vocabulary = attrs.field(init=False, repr=False)
    _specials: dict[int, int] = attrs.field(init=False, repr=False)
    """The special tokens that both have: the target's ids to the draft's."""

    _chunks: "_Chunks" = attrs.field(init=False, repr=False)
    _translations: dict[int, Translation] = attrs.field(factory=dict, init=False, repr=False)
    """What each row's text was in the draft's ids when it was last asked for."""

    @_draft.default
    def _draft_vocabulary(self) -> Vocabulary:
        # By itself attrs does so last, and what follows needs it done.
        attrs.validate(self)
        return Vocabulary(self.draft_tokenizer, self.decoder.shape.vocab_size)

    @_target.default
    def _target_vocabulary(self) -> Vocabulary:
        return Vocabulary(self.tokenizer, 1 + max(self.tokenizer.get_vocab().values()))

    @_specials.default
    def _common_specials(self) -> dict[int, int]:
        pairs = counterparts(self._target, self._draft)
        return {index: pairs[index] for index in self._target.specials if index in pairs}

    @_chunks.default
    def _chunks_of_the_target(self) -> "_Chunks":
        return _Chunks.of(self._target)

    def check_target(self, target: DecoderShape) -> None:
        """Raise ``ValueError`` unless this can draft for *target*."""
        check_rows(self.decoder, target)

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        """Guess up to *budget* tokens ``[batch]`` of each row; a forward of all rows a token of the draft."""
        slots, positions = Slots.of(self.decoder), self.decoder.shape.max_length
        # The last token drawn need not be fed, but is written down.
        ids = torch.zeros(len(budget), positions + 1, dtype=torch.int64)
        length = torch.zeros(len(budget), dtype=torch.int64)
        lines: dict[int, _Line] = {}
        for row in budget.nonzero().flatten().tolist():
            own, line = self._translated(row, history.before(row, 0).numpy())
            if 0 < len(own) <= positions:
                ids[row, : len(own)], length[row] = torch.from_numpy(own), len(own)
                lines[row] = line
        open_rows = list(lines)
        while open_rows:
            need = torch.zeros_like(length)
            need[open_rows] = 1
            with slots.lock:
                best = slots.feed(ids, length, need)[:, 0].argmax(dim=-1)
            ids[open_rows, length[open_rows]] = best[open_rows]
            length += need
            for row in open_rows:
                self._write(lines[row], int(best[row]))
            open_rows = [
                row
                for row in open_rows
                if length[row] <= positions and not lines[row].is_enough(int(budget[row]))
            ]
        return Draft(_padded([lines[row].guess if row in lines else [] for row in range(len(budget))]))

    def _translated(self, row: int, tokens: Ints) -> "tuple[Ints, _Line]":
        """A row's text in the draft's ids, and its last chunk, to be gone on with."""
        translation = self._translations.get(row, Translation()).of(tokens, self._chunks.split, self._encode)
        # Replaced as a whole, so that threads that take turns never see half of one.
        self._translations[row] = translation
        start = int(translation.ends[-2]) if len(translation.ends) > 1 else 0
        tail, opens = tokens[start:].tolist(), self._chunks.opens(tokens, start)
        line = _Line([], opens=True) if tail[-1] in self._target.specials else _Line(tail, opens)
        return self._draft.opened(translation.own), line

    def _encode(self, chunk: list[int], opens: bool) -> list[int]:
        """A chunk of the target's ids in the draft's: a special token, or text."""
        if chunk[0] in self._target.specials:
            return [self._specials[chunk[0]]] if chunk[0] in self._specials else []
        return self._draft.encode(characters(self._target.bytes_of(chunk, opens)), opens)

    def _write(self, line: "_Line", token: int) -> None:
        """Add to *line* what the draft chose, and guess anew what that is in the target's ids."""
        line.drawn.append(token)
        if token in self._draft.said:
            line.guess = self._guess(line)
            return
        # An end, or something else that is no text: nothing that could be guessed follows it.
        line.ended = True
        # Behind text that could not be guessed it would be out of place.
        if line.guess or len(line.drawn) == 1:
            line.guess += [index for index, own in self._specials.items() if own == token]

    def _guess(self, line: "_Line") -> list[int]:
        before = self._target.bytes_of(line.tail, line.opens)
        new = self._draft.bytes_of(line.drawn, line.opens and not line.tail)
        ids = self._target.encode(characters(before + new), line.opens)
        if ids[: len(line.tail)] == line.tail:
            return ids[len(line.tail) :]
        # The target came here by other tokens than its tokenizer does. Unless that was in the middle
        # of a character, it may well go on as its tokenizer does in the middle of a text.
        return [] if ends_in_character(before) else self._target.encode(characters(new), opens=False)


@attrs.define(eq=False)
class _Line:
    """The end of one row's text, and what the draft makes of it."""

    tail: list[int]
    """The target's ids since the text was last cut."""

    opens: bool
    """Whether they open a text."""

    drawn: list[int] = attrs.field(factory=list, init=False)
    """What the draft chose behind them."""

    guess: list[int] = attrs.field(factory=list, init=False)
    """The same for the target."""

    ended: bool = attrs.field(default=False, init=False)

    def is_enough(self, budget: int) -> bool:
        """Whether *budget* tokens are guessed, or should have been by now."""
        return self.ended or len(self.guess) >= budget or len(self.drawn) >= _MOST_DRAWN * budget


@attrs.frozen(eq=False)
class _Chunks:
    """
    Where a text is cut, so that what has been tokenized once stays as it is.

    Before a word, where tokenizers cut as well, and at special tokens; in a text without spaces
    after a while before any character. Where a chunk ends depends on the tokens up to there alone.
    """

    before_word: Bools
    """Which ids begin with whitespace, ``[vocab + 1]``; the last stands for those beyond."""

    after_word: Bools
    """Which do not end with it."""

    before_character: Bools
    """Which do not begin in the middle of a character."""

    special: Bools

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "_Chunks":
        """The kinds of its tokens."""
        ids = range(vocabulary.size + 1)
        said = [vocabulary.said.get(index, b"") for index in ids]
        return cls(
            np.array([text[:1].isspace() for text in said]),
            np.array([not text[-1:].isspace() for text in said]),
            # In UTF-8 the bytes after a character's first are 10xxxxxx.
            np.array([not text or text[0] & 0xC0 != 0x80 for text in said]),
            np.array([index in vocabulary.specials for index in ids]),
        )

    def opens(self, tokens: Ints, start: int) -> bool:
        """Whether the chunk that begins at *start* opens a text: the first, and behind special tokens."""
        return start == 0 or bool(self.special[min(tokens[start - 1], len(self.special) - 1)])

    def split(self, tokens: Ints, start: int) -> Iterator[tuple[int, int, bool]]:
        """Of each chunk from *start* on: its first token, the one behind it, and whether it opens a text."""
        rest, count = np.minimum(tokens[start:], len(self.special) - 1), len(tokens)
        words = start + 1 + np.flatnonzero(self.after_word[rest[:-1]] & self.before_word[rest[1:]])
        characters = start + np.flatnonzero(self.before_character[rest])
        specials = start + np.flatnonzero(self.special[rest])
        while start < count:
            special = _first(specials, start, count)
            word = _first(words, start + _CHUNK, count)
            character = _first(characters, start + _LONGEST_CHUNK, count)
            end = start + 1 if special == start else min(special, word, character)
            yield start, end, self.opens(tokens, start)
            start = end


def _first(places: Ints, start: int, none: int) -> int:
    """The first of *places* from *start* on, or *none*."""
    index = int(places.searchsorted(start))
    return int(places[index]) if index < len(places) else none


def _padded(rows: list[list[int]]) -> Tensor:
    """``[batch, k]``, -1 behind shorter ones."""
    most = max(map(len, rows), default=0)
    return torch.tensor([row + [-1] * (most - len(row)) for row in rows], dtype=torch.int64)
