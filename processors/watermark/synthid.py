"""SynthID watermark: tournament sampling."""

from collections.abc import Iterable
from typing import ClassVar

import attrs
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...decoding.history import History
from ...decoding.validation import as_list, is_whole
from ..chain import Composable
from ..numerics.exact_sum import exact_sum
from ..parameter import a_bool, one_integer

# A linear congruential generator in wrapping int64, with the constants of newlib and musl.
MULTIPLIER, INCREMENT = 6364136223846793005, 1


def _as_keys(keys: Iterable[int]) -> tuple[int, ...]:
    values = as_list(keys)
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise TypeError(f"'keys' must be integers: got {keys!r}, a {type(keys).__name__}")
    found = tuple(values)
    for key in found:
        if not is_whole(key):
            raise TypeError(f"'keys' must be integers: got {key!r}, a {type(key).__name__}")
        if not -(1 << 63) <= key < 1 << 63:
            raise ValueError(f"'keys' must fit in 64 bits: got {key!r}")
    return tuple(int(key) for key in found)


@attrs.frozen(eq=False)
class SynthIDWatermark(Composable):
    """
    Reweight tokens by a tournament on pseudo-random bits seeded by the preceding tokens.

    Each of *keys* is a layer. It assigns every token a random bit, its g-value, seeded with the key
    and the n-gram that the token would complete, and moves probability to tokens with a 1. On
    average over keys every token keeps its probability. With the keys, a detector finds an excess of
    ones in watermarked text (:class:`SynthIDDetector`).

    The g-values and scores equal those of Hugging Face, whose object stores the contexts it has
    seen and so serves one batch once; this one derives them from the history. As there, contexts
    hold generated tokens only, zeros before the first; a context that occurred among the last
    *context_history_size* is not watermarked again, and its column is unchanged. Watermarked
    columns come out as log-probabilities. A forbidden token is ``-inf``, not the lowest number.

    Place it last in a chain: the tournament must see the final distribution. Typically 20-30 keys;
    no-op without any.

    Dathathri et al., 2024, `Scalable watermarking for identifying large language model outputs
    <https://doi.org/10.1038/s41586-024-08025-4>`_: tournament sampling with two candidates a match,
    g-values of Bernoulli(0.5).
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False  # searches the history, multiplies in int64

    keys: tuple[int, ...] = attrs.field(converter=_as_keys)
    """The secret keys: one integer for each layer."""

    ngram_len: int = attrs.field(default=5, validator=one_integer(">= 2", lambda n: n >= 2))
    """Number of tokens that seed a g-value, its own token included."""

    context_history_size: int = attrs.field(default=1024, validator=one_integer(">= 0", lambda n: n >= 0))
    """Number of last contexts that count as seen. 0 watermarks repeated contexts too."""

    sampling_table_seed: int = attrs.field(
        default=0, validator=one_integer("in [0, 2^63)", lambda seed: 0 <= seed < 1 << 63)
    )
    """Seed of the table of random bits."""

    sampling_table_size: int = attrs.field(
        default=65536, validator=one_integer("in [1, 2^24]", lambda size: 1 <= size <= 1 << 24)
    )
    """Size of the table of random bits."""

    skip_first_ngram_calls: bool = attrs.field(default=False, validator=a_bool)
    """Whether to skip a row's first *ngram_len* - 1 tokens, whose contexts contain zeros."""

    _table: Tensor = attrs.field(init=False, repr=False)

    @_table.default
    def _toss(self) -> Tensor:
        # attrs validates after the defaults, which need valid fields.
        attrs.validate(self)
        generator = torch.Generator().manual_seed(self.sampling_table_seed)
        return torch.randint(0, 2, (self.sampling_table_size,), generator=generator).bool()

    @property
    def heads(self) -> float:
        """Share of ones in the table, and so expected in unmarked text."""
        return float(self._table.double().mean())

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Watermark ``[batch, width, vocab]`` logits, which are not modified."""
        if not self.keys:
            return logits
        contexts = self._contexts(history)
        own = contexts.expand(-1, logits.shape[1], -1).gather(-1, history.length[..., None])
        marked = self._tournament(logits, own)
        return torch.where(self._unmarked(contexts, own, history), logits, marked)

    def g_values(self, ids: Tensor) -> Tensor:
        """
        The g-values of a text's tokens.

        Args:
            ids: ``[..., length]`` int64.

        Returns:
            ``[..., length - ngram_len + 1, keys]`` bool: one for each token with a context and
            each layer.
        """
        ngrams = _hashed(ids.unfold(-1, self.ngram_len, 1))
        return torch.stack([self._coins(ngrams, key) for key in self.keys], dim=-1)

    def fresh_contexts(self, ids: Tensor) -> Tensor:
        """
        Contexts of a text that are watermarked.

        Args:
            ids: ``[batch, length]`` int64.

        Returns:
            ``[batch, length - ngram_len + 1]`` bool: for each token with a context, False if the
            context is one of the *context_history_size* before it.
        """
        contexts = _hashed(ids[:, :-1].unfold(-1, self.ngram_len - 1, 1))
        return torch.tensor([self._are_fresh(row) for row in contexts.tolist()])

    def _are_fresh(self, contexts: list[int]) -> list[bool]:
        latest: dict[int, int] = {}
        fresh = []
        for place, context in enumerate(contexts):
            seen = latest.get(context)
            fresh.append(seen is None or place - seen > self.context_history_size)
            latest[context] = place
        return fresh

    def _contexts(self, history: History) -> Tensor:
        """``[batch, paths, capacity + 1]``: hash of the tokens before each slot and after the last."""
        before = self.ngram_len - 1
        slots = torch.arange(history.ids.shape[-1], device=history.ids.device)
        generated = history.ids.masked_fill(slots < history.prompt[:, None, None], 0)
        return _hashed(pad(generated, (before, 0)).unfold(-1, before, 1))

    def _unmarked(self, contexts: Tensor, own: Tensor, history: History) -> Tensor:
        """``[batch, width, 1]``: columns whose context occurred before or is incomplete."""
        slots = torch.arange(contexts.shape[-1], device=contexts.device)
        length, first = history.length[..., None], history.prompt[:, None, None]
        if self.skip_first_ngram_calls:
            first = first + self.ngram_len - 1
        remembered = (slots >= first) & (slots < length) & (slots >= length - self.context_history_size)
        return (remembered & (contexts == own)).any(dim=-1, keepdim=True) | (length < first)

    def _tournament(self, logits: Tensor, contexts: Tensor) -> Tensor:
        """Log-probabilities ``[batch, width, vocab]`` after all layers; *contexts* ``[batch, width, 1]``."""
        vocab = torch.arange(logits.shape[-1], device=logits.device)
        ngrams = _accumulated(contexts, vocab)
        # In float64 with order-independent sums: winners gain exactly what losers lose, and a row
        # does not depend on its neighbours in a batch.
        probs = logits.double().softmax(dim=-1)
        for key in self.keys:
            wins = self._coins(ngrams, key)
            lost = exact_sum(probs.masked_fill(wins, 0.0), bits=50)
            # p (1 + g - Σ p g), with 1 - Σ p g summed directly, since it may be tiny.
            probs = probs * (wins + lost)
        marked = probs.log().to(logits.dtype)
        # A row without a token is NaN here.
        return marked.masked_fill(logits == -torch.inf, -torch.inf)

    def _coins(self, ngrams: Tensor, key: int) -> Tensor:
        table = self._table.to(ngrams.device)
        return table[_accumulated(ngrams, key) % self.sampling_table_size]


def _hashed(tokens: Tensor) -> Tensor:
    """One hash for each ``[..., n]`` tokens."""
    hashed = torch.ones_like(tokens[..., 0])
    for i in range(tokens.shape[-1]):
        hashed = _accumulated(hashed, tokens[..., i])
    return hashed


def _accumulated(hashed: Tensor, value: Tensor | int) -> Tensor:
    return (hashed + value) * MULTIPLIER + INCREMENT
