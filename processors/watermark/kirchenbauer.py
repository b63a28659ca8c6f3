"""Kirchenbauer watermark: a logit bias on pseudo-random green lists."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import ClassVar

import attrs
import torch
from attrs import validators
from torch import Tensor

from ...decoding import validation
from ...decoding.history import History
from ..chain import Composable
from ..parameter import as_reals, is_scalar, one_integer, one_of, per_row, real

LEFTHASH, SELFHASH = "lefthash", "selfhash"

TABLE_SIZE = 1_000_003
"""Size of the permutation that hashes token ids in self-hashing."""

CANDIDATES = 40
"""Number of most likely tokens for which self-hashing computes whether they are green."""


@attrs.frozen(eq=False)
class KirchenbauerWatermark(Composable):
    """
    Add *bias* to the logits of a "green" share of the vocabulary, drawn for each context.

    With the parameters, a detector can count a text's green tokens and so tell watermarked text
    (:class:`KirchenbauerDetector`). The lists equal those of Hugging Face on a CPU bit for bit,
    on any device, so the watermarks and detectors are interchangeable.

    Typically a bias of 0.5-2.5; no-op at 0. A column with fewer than *context_width* preceding
    tokens, the prompt's included, is unchanged. The lists are drawn on the host for each context:
    this processor does not trace into a graph.

    Kirchenbauer et al., 2023, `A Watermark for Large Language Models
    <https://arxiv.org/abs/2301.10226>`_, algorithms 2 (``"lefthash"``: the last token seeds the
    list) and 3 (``"selfhash"``: the candidate token seeds its own list together with the tokens
    before it). Algorithm 3 would have to check every token; as in the authors' code and in Hugging
    Face, only the 40 most likely are checked, ties by ascending id.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False  # draws the lists on the host

    greenlist_ratio: float = attrs.field(
        default=0.25,
        converter=validation.as_real,
        validator=validation.one_real("in (0, 1)", lambda ratio: 0 < ratio < 1),
    )
    """Green share of the vocabulary. γ in the paper."""

    bias: float | Tensor = attrs.field(
        default=2.0, converter=as_reals, validator=real("a number", lambda bias: bias == bias)
    )
    """Bias of green logits, δ in the paper. One for all rows, or ``[batch]``."""

    hashing_key: int = attrs.field(
        default=15485863, validator=one_integer("in [1, 2^63)", lambda key: 0 < key < 1 << 63)
    )
    """The secret key. The default, the millionth prime, is public."""

    seeding_scheme: str = attrs.field(default=LEFTHASH, validator=one_of(LEFTHASH, SELFHASH))
    """``"lefthash"`` or ``"selfhash"``."""

    context_width: int = attrs.field(default=1, validator=one_integer(">= 1", lambda n: n >= 1))
    """
    Number of tokens that seed a list. Self-hashing includes the token itself; left-hashing uses
    the last one only, as Hugging Face does, but starts once that many tokens precede.
    """

    vocab_size: int | None = attrs.field(
        default=None, validator=validators.optional(one_integer(">= 1", lambda n: n >= 1))
    )
    """
    Number of tokens the lists are drawn from; None for the number of logits. Required by a
    detector.
    """

    @property
    def ngram(self) -> int:
        """Number of tokens that decide whether the last of them is green, itself included."""
        return self.context_width + (self.seeding_scheme == LEFTHASH)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Bias green tokens in ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.bias, 0.0):
            return logits
        bias = per_row("bias", self.bias, logits)
        green = torch.zeros(logits.shape, dtype=torch.bool)
        for row, column in product(range(logits.shape[0]), range(logits.shape[1])):
            context = history.before(row, column)[-self.context_width :].tolist()
            if len(context) == self.context_width:
                green[row, column] = self._green(context, logits[row, column])
        # With a bias of 0, even the sign of zeros is kept.
        return torch.where(green.to(logits.device) & (bias != 0), logits + bias, logits)

    def is_green(self, ngram: Sequence[int]) -> bool:
        """
        Whether the last token of an *ngram*, :attr:`ngram` tokens, is green after those before it.

        Raises:
            ValueError: The watermark has no ``vocab_size``.
        """
        if self.vocab_size is None:
            raise ValueError(f"'vocab_size' must be given to tell what is green: got None in {self!r}")
        return self._is_green(ngram, self.vocab_size)

    def _green(self, context: list[int], logits: Tensor) -> Tensor:
        """Which tokens are green after *context*, ``[vocab]`` bool."""
        vocab, listed = logits.shape[0], self.vocab_size or logits.shape[0]
        if listed > vocab:
            raise ValueError(f"'vocab_size' must be at most the number of logits, {vocab}: got {listed}")
        green = torch.zeros(vocab, dtype=torch.bool)
        if self.seeding_scheme == LEFTHASH:
            green[:listed] = self._list(self._seed(context), listed)
            return green
        # A stable sort, so that ties do not depend on the machine.
        top_tokens = logits.sort(descending=True, stable=True).indices[:CANDIDATES].tolist()
        for token in top_tokens:
            # Drawing a list is slow, and a bias does not change a forbidden token.
            if logits[token] > -torch.inf:
                green[token] = self._is_green([*context[1:], token], listed)
        return green

    def _is_green(self, ngram: Sequence[int], vocab_size: int) -> bool:
        target = ngram[-1]
        seeding = ngram[:-1] if self.seeding_scheme == LEFTHASH else ngram
        return target < vocab_size and bool(self._list(self._seed(seeding), vocab_size)[target])

    def _seed(self, context: Sequence[int]) -> int:
        """Seed of the list for *context*."""
        if self.seeding_scheme == LEFTHASH:
            seed = self.hashing_key * context[-1]
        else:
            # int64 products, which wrap around as in Hugging Face.
            hashed = _hash_table(self.hashing_key)[torch.tensor(context) % TABLE_SIZE] + 1
            seed = int((self.hashing_key * hashed * hashed[-1]).min())
        return seed % ((1 << 64) - 1)

    def _list(self, seed: int, vocab_size: int) -> Tensor:
        return _green_list(seed, vocab_size, int(vocab_size * self.greenlist_ratio))


@lru_cache(maxsize=256)
def _green_list(seed: int, vocab_size: int, size: int) -> Tensor:
    """The first *size* ids of a permutation, as a mask ``[vocab_size]``. Cached: read-only."""
    green = torch.zeros(vocab_size, dtype=torch.bool)
    green[_permutation(seed, vocab_size)[:size]] = True
    return green


@lru_cache(maxsize=2)
def _hash_table(key: int) -> Tensor:
    """Hash table of self-hashing, ``[TABLE_SIZE]``."""
    return _permutation(key, TABLE_SIZE)


def _permutation(seed: int, size: int) -> Tensor:
    # Always on the host: other devices' generators give other permutations.
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed), device="cpu")
