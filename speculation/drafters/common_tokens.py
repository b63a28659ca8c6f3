"""Drafting with a model of another vocabulary, on the common tokens."""

from collections.abc import Iterator
from typing import Any

import attrs
import torch
from attrs import validators
from torch import Tensor

from ...decoding.cache.slots import Slots
from ...decoding.engine.feed_and_sample import sample_rows
from ...decoding.history import History
from ...decoding.protocols import Decoder, DecoderShape, Draft, SamplesTokens
from ...decoding.text.token_bytes import has_vocabulary
from ...decoding.validation import a_whole_number
from .draft_decoder import a_decoder, check_rows
from .translation import Ints, Translation
from .vocabulary import Vocabulary, characters, counterparts


@attrs.frozen(eq=False)
class CommonTokens:
    """
    Draft with *decoder*, a smaller model of another vocabulary, restricted to the common tokens.

    Its logits are permuted to the target's vocabulary, ``-inf`` for tokens that the draft lacks;
    from there it works as :class:`DraftModel`: the target's chain and sampler, with the noise that
    the target uses at the same position, so that sampled tokens are accepted as often as with one
    vocabulary. The text is translated token by token; a token that the draft lacks is retokenized
    on its own. The draft model is not modified.

    Preferred when most tokens are common, as in models of one family, and for sampling. Where
    few are, or the draft needs several tokens for one of the target's,
    :class:`RetokenizedDraft` drafts more.

    Timor et al., 2025, `Accelerating LLM Inference with Lossless Speculative Decoding Algorithms
    for Heterogeneous Vocabularies <https://arxiv.org/abs/2502.05202>`_: token-level intersection.
    """

    decoder: Decoder = attrs.field(validator=a_decoder)
    """The draft model, with at least as many rows as prompts. Rows beyond its positions get no draft."""

    draft_tokenizer: Any = attrs.field(repr=False, validator=has_vocabulary)
    """Hugging Face tokenizer of the draft model."""

    tokenizer: Any = attrs.field(repr=False, validator=has_vocabulary)
    """Hugging Face tokenizer of the target."""

    vocab_size: int = attrs.field(validator=[a_whole_number, validators.ge(1)])
    """Width of the target's logits, ``target.shape.vocab_size``; often more than its number of tokens."""

    _draft: Vocabulary = attrs.field(init=False, repr=False)
    _target: Vocabulary = attrs.field(init=False, repr=False)
    _draft_of: dict[int, int] = attrs.field(init=False, repr=False)
    """Common tokens: the target's ids to the draft's."""

    _source: Tensor = attrs.field(init=False, repr=False)
    """Index into the draft's logits of each target token, ``[vocab]``; arbitrary for lacking ones."""

    _lacking: Tensor = attrs.field(init=False, repr=False)
    """Mask of the tokens that the draft lacks, ``[vocab]`` bool."""

    _retokenized: dict[int, list[int]] = attrs.field(factory=dict, init=False, repr=False)
    """Target tokens that the draft lacks, retokenized for the draft."""

    _translations: dict[int, Translation] = attrs.field(factory=dict, init=False, repr=False)
    """Each row's text in the draft's ids, as of the last draft."""

    @_draft.default
    def _draft_vocabulary(self) -> Vocabulary:
        # attrs validates after the defaults, which need valid fields.
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
        """Raise ``ValueError`` unless the decoder can draft for *target*."""
        if self.vocab_size != target.vocab_size:
            raise ValueError(f"'vocab_size' must be the target's, {target.vocab_size}: got {self.vocab_size}")
        check_rows(self.decoder, target)

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        """Propose up to *budget* tokens ``[batch]`` for each row, one forward of all rows per token."""
        slots = Slots.of(self.decoder)
        own, own_length = self._in_own_ids(history, budget)
        ids, length = history.with_room(int(budget.max())).ids, history.length[:, 0]
        # A draft token's predecessor is fed at its position, so the cache bounds the draft too.
        room = self.decoder.shape.max_length + 1 - own_length
        budget = torch.where(own_length > 0, budget.minimum(room).clamp(min=0), 0)
        drafted: list[Tensor] = []
        scores: list[Tensor] = []
        while (active := budget > len(drafted)).any():
            reached = length + budget.clamp(max=len(drafted))
            with slots.lock:
                fed = slots.feed(attrs.evolve(history, ids=own[:, None]), own_length, active.long())
                seen = attrs.evolve(history, ids=ids, length=reached[:, None])
                logits = self._in_target_order(fed.logits)
                sampled, processed = sample_rows(sample, logits, seen, active.long())
                if sample.draft_scores:
                    scores.append(processed.logits[:, 0].clone())
            next_ids = torch.where(active, sampled[:, 0], -1)
            # A token that the draft lacks, such as a forced one, may be drafted, but none after it.
            known = torch.where(next_ids >= 0, ~self._lacking[next_ids], False)
            budget = torch.where(active & ~known, len(drafted), budget)
            ids[known, 0, reached[known]] = next_ids[known]
            own[known, own_length[known]] = self._source[next_ids[known]]
            own_length = own_length + known
            drafted.append(next_ids)
        if not drafted:
            return Draft(torch.empty(len(budget), 0, dtype=torch.int64))
        return Draft(torch.stack(drafted, dim=1), torch.stack(scores, dim=1) if scores else None)

    def _in_target_order(self, logits: Tensor) -> Tensor:
        """Permute the draft's logits ``[..., draft vocab]`` to the target's vocabulary, ``[..., vocab]``."""
        return logits.index_select(-1, self._source).masked_fill_(self._lacking, -torch.inf)

    def _in_own_ids(self, history: History, budget: Tensor) -> tuple[Tensor, Tensor]:
        """Rows with a budget in the draft's ids ``[batch, capacity]``, and their lengths."""
        # The last draft token is stored, but not fed.
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
        """Row *row*'s text in the draft's ids."""
        translation = self._translations.get(row, Translation()).of(tokens, _one_by_one, self._own)
        # Replaced as a whole, so that other threads never see a partial one.
        self._translations[row] = translation
        return self._draft.with_leading_specials(translation.own)

    def _own(self, token: list[int], starts_text: bool) -> list[int]:
        """A single token in the draft's ids."""
        [index] = token
        if index in self._draft_of:
            return [self._draft_of[index]]
        if index not in self._retokenized:
            text = characters(self._target.token_bytes.get(index, b""))
            self._retokenized[index] = self._draft.encode(text, starts_text=False)
        return self._retokenized[index]


def _one_by_one(tokens: Ints, start: int) -> Iterator[tuple[int, int, bool]]:
    for place in range(start, len(tokens)):
        yield place, place + 1, place == 0
