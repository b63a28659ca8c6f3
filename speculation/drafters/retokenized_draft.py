"""Drafting with a model of another tokenizer, by retokenizing its text."""

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
from ...decoding.text.token_bytes import has_vocabulary
from .draft_decoder import a_decoder, check_rows
from .translation import Ints, Translation
from .vocabulary import Vocabulary, characters, counterparts, ends_in_character

Bools = NDArray[np.bool_]

_CHUNK, _LONGEST_CHUNK = 32, 64
"""Chunk length in target tokens, in text with spaces and without."""

_MOST_DRAWN = 2
"""Maximum draft model tokens per target token; beyond it a draft is too slow to be useful."""


@attrs.frozen(eq=False)
class RetokenizedDraft:
    """
    Draft with *decoder*, a smaller model of another tokenizer, and retokenize its text.

    The target's text is tokenized for the draft model, which continues greedily; its text is
    tokenized for the target. The vocabularies need not have a token in common. The draft model is
    not modified.

    It cannot share the target's noise, which is keyed by the target's token ids: the acceptance
    rate falls with the temperature, where that of :class:`CommonTokens` mostly does not. The
    target's processors are not applied to it.

    Timor et al., 2025, `Accelerating LLM Inference with Lossless Speculative Decoding Algorithms
    for Heterogeneous Vocabularies <https://arxiv.org/abs/2502.05202>`_: string-level exact match.
    """

    decoder: Decoder = attrs.field(validator=a_decoder)
    """The draft model, with at least as many rows as prompts. Rows beyond its positions get no draft."""

    draft_tokenizer: Any = attrs.field(repr=False, validator=has_vocabulary)
    """Hugging Face tokenizer of the draft model."""

    tokenizer: Any = attrs.field(repr=False, validator=has_vocabulary)
    """Hugging Face tokenizer of the target."""

    _draft: Vocabulary = attrs.field(init=False, repr=False)
    _target: Vocabulary = attrs.field(init=False, repr=False)
    _specials: dict[int, int] = attrs.field(init=False, repr=False)
    """Common special tokens: the target's ids to the draft's."""

    _chunks: "_Chunks" = attrs.field(init=False, repr=False)
    _translations: dict[int, Translation] = attrs.field(factory=dict, init=False, repr=False)
    """Each row's text in the draft's ids, as of the last draft."""

    @_draft.default
    def _draft_vocabulary(self) -> Vocabulary:
        # attrs validates after the defaults, which need valid fields.
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
        """Raise ``ValueError`` unless the decoder can draft for *target*."""
        check_rows(self.decoder, target)

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        """Propose up to *budget* tokens ``[batch]`` for each row, one forward per draft model token."""
        slots, positions = Slots.of(self.decoder), self.decoder.shape.max_length
        # The last token is stored, but not fed.
        ids = torch.zeros(len(budget), positions + 1, dtype=torch.int64)
        length = torch.zeros(len(budget), dtype=torch.int64)
        drafts: dict[int, _RowDraft] = {}
        for row in budget.nonzero().flatten().tolist():
            own, draft = self._translated(row, history.before(row, 0).numpy())
            if 0 < len(own) <= positions:
                ids[row, : len(own)], length[row] = torch.from_numpy(own), len(own)
                drafts[row] = draft
        open_rows = list(drafts)
        while open_rows:
            need = torch.zeros_like(length)
            need[open_rows] = 1
            with slots.lock:
                fed = slots.feed(attrs.evolve(history, ids=ids[:, None]), length, need)
                best = fed.logits[:, 0].argmax(dim=-1)
            ids[open_rows, length[open_rows]] = best[open_rows]
            length += need
            for row in open_rows:
                self._write(drafts[row], int(best[row]))
            open_rows = [
                row
                for row in open_rows
                if length[row] <= positions and not drafts[row].is_complete(int(budget[row]))
            ]
        return Draft(_padded([drafts[row].draft_ids if row in drafts else [] for row in range(len(budget))]))

    def _translated(self, row: int, tokens: Ints) -> "tuple[Ints, _RowDraft]":
        """A row's text in the draft's ids, and its last chunk, to be continued."""
        translation = self._translations.get(row, Translation()).of(tokens, self._chunks.split, self._encode)
        # Replaced as a whole, so that other threads never see a partial one.
        self._translations[row] = translation
        start = int(translation.ends[-2]) if len(translation.ends) > 1 else 0
        tail, starts_text = tokens[start:].tolist(), self._chunks.starts_text(tokens, start)
        draft = (
            _RowDraft([], starts_text=True)
            if tail[-1] in self._target.specials
            else _RowDraft(tail, starts_text)
        )
        return self._draft.with_leading_specials(translation.own), draft

    def _encode(self, chunk: list[int], starts_text: bool) -> list[int]:
        """Translate a chunk, a special token or text, from the target's ids to the draft's."""
        if chunk[0] in self._target.specials:
            return [self._specials[chunk[0]]] if chunk[0] in self._specials else []
        return self._draft.encode(characters(self._target.bytes_of(chunk, starts_text)), starts_text)

    def _write(self, draft: "_RowDraft", token: int) -> None:
        """Append the draft model's *token* to *draft*, and retokenize for the target."""
        draft.drawn.append(token)
        if token in self._draft.token_bytes:
            draft.draft_ids = self._draft_ids(draft)
            return
        # An end of sequence, or another token without text: nothing can be drafted after it.
        draft.ended = True
        # Not after text that could not be retokenized.
        if draft.draft_ids or len(draft.drawn) == 1:
            draft.draft_ids += [index for index, own in self._specials.items() if own == token]

    def _draft_ids(self, draft: "_RowDraft") -> list[int]:
        before = self._target.bytes_of(draft.tail, draft.starts_text)
        new = self._draft.bytes_of(draft.drawn, draft.starts_text and not draft.tail)
        ids = self._target.encode(characters(before + new), draft.starts_text)
        if ids[: len(draft.tail)] == draft.tail:
            return ids[len(draft.tail) :]
        # The target's tokens differ from those of its tokenizer for this text. Unless they end inside
        # a character, continue with the new text's own tokenization.
        return [] if ends_in_character(before) else self._target.encode(characters(new), starts_text=False)


@attrs.define(eq=False)
class _RowDraft:
    """The end of a row's text, and its draft."""

    tail: list[int]
    """Target ids of the last chunk."""

    starts_text: bool
    """Whether the chunk starts a text."""

    drawn: list[int] = attrs.field(factory=list, init=False)
    """Draft model's continuation, in its own ids."""

    draft_ids: list[int] = attrs.field(factory=list, init=False)
    """The continuation in the target's ids."""

    ended: bool = attrs.field(default=False, init=False)

    def is_complete(self, budget: int) -> bool:
        """Whether *budget* tokens are drafted, or the limit of draft model tokens is reached."""
        return self.ended or len(self.draft_ids) >= budget or len(self.drawn) >= _MOST_DRAWN * budget


@attrs.frozen(eq=False)
class _Chunks:
    """
    Chunk boundaries of a text, so that the tokenization of finished chunks is stable.

    Chunks end before a word, as pre-tokenizers split too, and at special tokens; in text without
    spaces, after a maximum length, before any character. A boundary depends on the tokens up to it
    only.
    """

    before_word: Bools
    """Mask of ids that begin with whitespace, ``[vocab + 1]``; the last entry is for unknown ids."""

    after_word: Bools
    """Mask of ids that do not end with whitespace."""

    before_character: Bools
    """Mask of ids that do not begin inside a character."""

    special: Bools

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "_Chunks":
        """Masks of the tokens of *vocabulary*."""
        ids = range(vocabulary.size + 1)
        token_bytes = [vocabulary.token_bytes.get(index, b"") for index in ids]
        return cls(
            np.array([text[:1].isspace() for text in token_bytes]),
            np.array([not text[-1:].isspace() for text in token_bytes]),
            # In UTF-8 the bytes after a character's first are 10xxxxxx.
            np.array([not text or text[0] & 0xC0 != 0x80 for text in token_bytes]),
            np.array([index in vocabulary.specials for index in ids]),
        )

    def starts_text(self, tokens: Ints, start: int) -> bool:
        """Whether the chunk at *start* starts a text: the first one, and those after special tokens."""
        return start == 0 or bool(self.special[min(tokens[start - 1], len(self.special) - 1)])

    def split(self, tokens: Ints, start: int) -> Iterator[tuple[int, int, bool]]:
        """Yield start, end and whether it starts a text for each chunk from *start* on."""
        rest, count = np.minimum(tokens[start:], len(self.special) - 1), len(tokens)
        words = start + 1 + np.flatnonzero(self.after_word[rest[:-1]] & self.before_word[rest[1:]])
        characters = start + np.flatnonzero(self.before_character[rest])
        specials = start + np.flatnonzero(self.special[rest])
        while start < count:
            special = _first(specials, start, count)
            word = _first(words, start + _CHUNK, count)
            character = _first(characters, start + _LONGEST_CHUNK, count)
            end = start + 1 if special == start else min(special, word, character)
            yield start, end, self.starts_text(tokens, start)
            start = end


def _first(places: Ints, start: int, none: int) -> int:
    """First of *places* >= *start*, or *none*."""
    index = int(places.searchsorted(start))
    return int(places[index]) if index < len(places) else none


def _padded(rows: list[list[int]]) -> Tensor:
    """Rows as ``[batch, k]``, right-padded with -1."""
    most = max(map(len, rows), default=0)
    return torch.tensor([row + [-1] * (most - len(row)) for row in rows], dtype=torch.int64)
