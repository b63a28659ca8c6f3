"""Guessing with a model of another vocabulary, by the tokens that both have."""

from collections.abc import Iterator
from typing import Any

import attrs
import torch
from attrs import validators
from torch import Tensor

from ...decoding.cache.slots import Slots
from ...decoding.history import History
from ...decoding.protocols import Decoder, DecoderShape, Draft, SamplesTokens
from ...decoding.validation import a_whole_number
from .draft_decoder import a_decoder, check_rows
from .translation import Ints, Translation
from .vocabulary import Vocabulary, a_tokenizer, characters, counterparts


@attrs.frozen(eq=False)
class CommonTokens:
    """
    Guess with *decoder*, a smaller model of another vocabulary, the tokens that both have.

    Its logits are put in the order of the target's vocabulary, ``-inf`` for a token that it
    lacks; from there on it is a :class:`DraftModel`: the target's own chain and sampler choose,
    with the noise that the target is going to meet, so drawing accepts as well as it does with
    one vocabulary. The text so far is handed over token by token; one that the draft lacks is
    tokenized again, alone. The draft's model is not touched.

    The choice when most tokens are common, as in models of one family, and whenever text is
    drawn. Where few are, or the draft spells out what is one token of the target,
    :class:`RetokenizedDraft` guesses more.

    Timor et al., 2025, `Accelerating LLM Inference with Lossless Speculative Decoding Algorithms
    for Heterogeneous Vocabularies <https://arxiv.org/abs/2502.05202>`_: token-level intersection.
    """

    decoder: Decoder = attrs.field(validator=a_decoder)
    """Of at least as many rows as there are prompts. A row beyond its positions gets no draft."""

    draft_tokenizer: Any = attrs.field(repr=False, validator=a_tokenizer)
    """The draft's, a Hugging Face tokenizer."""

    tokenizer: Any = attrs.field(repr=False, validator=a_tokenizer)
    """The target's."""

    vocab_size: int = attrs.field(validator=[a_whole_number, validators.ge(1)])
    """The target's logits per column, ``target.shape.vocab_size``; often more than it has tokens."""

    _draft: Vocabulary = attrs.field(init=False, repr=False)
    _target: Vocabulary = attrs.field(init=False, repr=False)
    _draft_of: dict[int, int] = attrs.field(init=False, repr=False)
    """The common tokens: the target's ids to the draft's."""

    _source: Tensor = attrs.field(init=False, repr=False)
    """Where in the draft's logits each of the target's stands, ``[vocab]``; anywhere if nowhere."""

    _lacking: Tensor = attrs.field(init=False, repr=False)
    """Which tokens the draft lacks, ``[vocab]`` bool."""

    _handed_over: dict[int, list[int]] = attrs.field(factory=dict, init=False, repr=False)
    """Tokens that the draft lacks, tokenized again."""

    _translations: dict[int, Translation] = attrs.field(factory=dict, init=False, repr=False)
    """What each row's text was in the draft's ids when it was last asked for."""

    @_draft.default
    def _draft_vocabulary(self) -> Vocabulary:
        # By itself attrs does so last, and what follows needs it done.
        attrs.validate(self)
        return Vocabulary(self.draft_tokenizer, self.decoder.shape.vocab_size)

    @_target.default
    def _target_vocabulary(self) -> Vocabulary:
        return Vocabulary(self.tokenizer, self.vocab_size)

    @_draft_of.default
    def _common(self) -> dict[int, int]:
        common = counterparts(self._target, self._draft)
        if not common:
            raise ValueError("the draft's tokenizer must have a token in common with the target's: got none")
        return common

    @_source.default
    def _source_of_logits(self) -> Tensor:
        return torch.tensor([self._draft_of.get(index, 0) for index in range(self.vocab_size)])

    @_lacking.default
    def _lacking_tokens(self) -> Tensor:
        return torch.tensor([index not in self._draft_of for index in range(self.vocab_size)])

    def check_target(self, target: DecoderShape) -> None:
        """Raise ``ValueError`` unless this can draft for *target*."""
        if self.vocab_size != target.vocab_size:
            raise ValueError(f"'vocab_size' must be the target's, {target.vocab_size}: got {self.vocab_size}")
        check_rows(self.decoder, target)

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        """Guess up to *budget* tokens ``[batch]`` of each row, one forward of all rows a token."""
        slots = Slots.of(self.decoder)
        own, own_length = self._in_own_ids(history, budget)
        ids, length = history.ids.clone(), history.length[:, 0]
        # A guess's predecessor is fed at its position, so the cache bounds the guesses too.
        room = self.decoder.shape.max_length + 1 - own_length
        budget = torch.where(own_length > 0, budget.minimum(room).clamp(min=0), 0)
        guesses: list[Tensor] = []
        scores: list[Tensor] = []
        while (active := budget > len(guesses)).any():
            reached = length + budget.clamp(max=len(guesses))
            with slots.lock:
                logits = slots.feed(own, own_length, active.long())
                seen = attrs.evolve(history, ids=ids, length=reached[:, None])
                chosen, processed = sample(self._in_target_order(logits), seen)
                if sample.draft_scores:
                    scores.append(processed.logits[:, 0].clone())
            guess = torch.where(active, chosen[:, 0], -1)
            # What the draft lacks, such as a forced token, may be guessed, but nothing behind it.
            known = torch.where(guess >= 0, ~self._lacking[guess], False)
            budget = torch.where(active & ~known, len(guesses), budget)
            ids[known, 0, reached[known]] = guess[known]
            own[known, own_length[known]] = self._source[guess[known]]
            own_length = own_length + known
            guesses.append(guess)
        if not guesses:
            return Draft(torch.empty(len(budget), 0, dtype=torch.int64))
        return Draft(torch.stack(guesses, dim=1), torch.stack(scores, dim=1) if scores else None)

    def _in_target_order(self, logits: Tensor) -> Tensor:
        """The draft's logits ``[..., own vocab]`` as the target's, ``[..., vocab]``."""
        return logits.index_select(-1, self._source).masked_fill_(self._lacking, -torch.inf)

    def _in_own_ids(self, history: History, budget: Tensor) -> tuple[Tensor, Tensor]:
        """The rows that may be guessed for, in the draft's ids ``[batch, capacity]``, and their lengths."""
        # The last guess need not be fed, but is written down.
        capacity = self.decoder.shape.max_length + 1
        ids = torch.zeros(len(budget), capacity, dtype=torch.int64)
        length = torch.zeros(len(budget), dtype=torch.int64)
        for row in budget.nonzero().flatten().tolist():
            own = self._translated(row, history.before(row, 0).numpy())
            if len(own) < capacity:
                ids[row, : len(own)] = torch.from_numpy(own)
                length[row] = len(own)
        return ids, length

    def _translated(self, row: int, tokens: Ints) -> Ints:
        """A row's text in the draft's ids."""
        translation = self._translations.get(row, Translation()).of(tokens, _one_by_one, self._own)
        # Replaced as a whole, so that threads that take turns never see half of one.
        self._translations[row] = translation
        return self._draft.opened(translation.own)

    def _own(self, token: list[int], opens: bool) -> list[int]:
        """A single token in the draft's ids."""
        [index] = token
        if index in self._draft_of:
            return [self._draft_of[index]]
        if index not in self._handed_over:
            said = characters(self._target.said.get(index, b""))
            self._handed_over[index] = self._draft.encode(said, opens=False)
        return self._handed_over[index]


def _one_by_one(tokens: Ints, start: int) -> Iterator[tuple[int, int, bool]]:
    for place in range(start, len(tokens)):
        yield place, place + 1, place == 0
