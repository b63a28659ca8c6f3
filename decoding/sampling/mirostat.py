"""Mirostat: sampling at a target surprise."""

import math
from typing import Any, ClassVar

import attrs
import torch
from attrs import validators
from torch import Tensor

from ..history import History
from ..validation import a_whole_number, as_real, as_whole, is_whole, one_real
from .sample import Sample
from .sample_short_cuts import SampleShortCuts
from .stateful_sampler import StatefulRun

ZIPF_TOKENS = 100
"""The number of top tokens from which version 1 estimates the exponent. m in the paper."""

_draw = SampleShortCuts(Sample()).sample


def _one_or_two(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if not is_whole(value) or value not in (1, 2):
        raise ValueError(f"'{attribute.name}' must be 1 or 2: got {value!r}")


@attrs.frozen(eq=False)
class Mirostat:
    """
    Truncate such that the text's surprise stays at *tau* bits per token, and sample.

    A token's surprise is -log₂ of its probability. Tokens beyond a limit *mu* are dropped, except the
    most probable one. After each token, *eta* times the excess of its surprise over *tau* is
    subtracted from the limit. If the whole distribution is less surprising than *tau*, *mu* grows;
    no-op while it exceeds every surprise.

    Version 2 drops tokens with a surprise above *mu*. Version 1 estimates the exponent of Zipf's
    distribution from the 100 most probable tokens, and from it the number of tokens to keep for *mu*
    bits.

    It depends on past logits: each run begins a :class:`MirostatRun` of its own, and speculation is
    refused. Use it after a chain without truncation.

    Basu et al., 2021, `Mirostat: A Neural Text Decoding Algorithm that Directly Controls
    Perplexity <https://arxiv.org/abs/2007.14966>`_, with the rules of llama.cpp: *mu* starts at
    twice *tau*, at least one token remains, and the observed surprise is that among the remaining
    tokens. The authors' own code uses the model's distribution: ``of_model``. If version 1's number
    exceeds every integer, all tokens remain; llama.cpp overflows there and keeps one.
    """

    is_stateful: ClassVar[bool] = True

    tau: float = attrs.field(
        default=5.0, converter=as_real, validator=one_real("> 0 and finite", lambda tau: 0 < tau < math.inf)
    )
    """The target surprise, in bits. Typically 3-6."""

    eta: float = attrs.field(
        default=0.1, converter=as_real, validator=one_real("> 0 and finite", lambda eta: 0 < eta < math.inf)
    )
    """The learning rate of the limit."""

    version: int = attrs.field(default=2, validator=_one_or_two)
    """1 or 2."""

    seed: int = attrs.field(default=0, converter=as_whole, validator=a_whole_number)
    """Any integer. Equal seeds, streams and logits give equal text."""

    of_model: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """Whether the observed surprise is that in the model's distribution, not among the remaining tokens."""

    def begin(self, batch: int) -> "MirostatRun":
        """The sampler of one run over *batch* rows."""
        return MirostatRun(batch, self)


@attrs.define(eq=False)
class MirostatRun(StatefulRun):
    """One run of :class:`Mirostat`."""

    settings: Mirostat = attrs.field(validator=validators.instance_of(Mirostat))

    mu: Tensor = attrs.field(init=False)
    """``[batch]`` float64: each row's limit, in bits."""

    @mu.default
    def _twice_tau(self) -> Tensor:
        # attrs validates after the defaults, which need valid fields.
        attrs.validate(self)
        return torch.full((self.batch,), 2 * self.settings.tau, dtype=torch.float64)

    def _sample(self, logits: Tensor, history: History, advancing: Tensor) -> Tensor:
        surprise = _surprise(logits[:, 0])
        keep = _below_limit if self.settings.version == 2 else _by_zipf
        kept = logits.masked_fill(~keep(surprise, self.mu)[:, None], -torch.inf)
        sampled = _draw(kept, history)
        observed = surprise if self.settings.of_model else _surprise(kept[:, 0])
        error = observed.gather(-1, sampled)[:, 0] - self.settings.tau
        # A row without a possible token ends here and keeps its state.
        updating = advancing & error.isfinite()
        self.mu = torch.where(updating, self.mu - self.settings.eta * error, self.mu)
        return sampled[:, 0]


def _surprise(logits: Tensor) -> Tensor:
    """The surprise of each token, ``[batch, vocab]`` float64, in bits."""
    return logits.double().log_softmax(dim=-1) / -math.log(2)


def _below_limit(surprise: Tensor, mu: Tensor) -> Tensor:
    """The tokens with a surprise up to *mu* ``[batch]``: ``[batch, vocab]`` bool."""
    most_probable = surprise.argmin(dim=-1, keepdim=True)
    return (surprise <= mu[:, None]).scatter(-1, most_probable, True)


def _by_zipf(surprise: Tensor, mu: Tensor) -> Tensor:
    """The k most probable tokens, ``[batch, vocab]`` bool, k by Zipf's distribution."""
    # A stable sort, so that the choice among ties does not depend on the machine.
    ascending, order = surprise.sort(dim=-1, stable=True)
    k = _zipf_k(ascending, mu)
    within = torch.arange(surprise.shape[-1]) < k[:, None]
    return torch.zeros_like(within).scatter(-1, order, within)


def _zipf_k(surprise: Tensor, mu: Tensor) -> Tensor:
    """The number of tokens to keep, ``[batch]``; *surprise* ``[batch, vocab]`` ascending."""
    vocab = surprise.shape[-1]
    if vocab == 1:
        return torch.ones_like(mu)
    rank = torch.arange(1, min(ZIPF_TOKENS, vocab), dtype=torch.float64)
    t = ((rank + 1) / rank).log()
    b = surprise[:, : len(rank) + 1].diff(dim=-1) * math.log(2)
    # Forbidden tokens have no rank.
    t, b = t.where(b.isfinite(), 0.0), b.where(b.isfinite(), 0.0)
    s = _in_order(t * b) / _in_order(t * t)
    ε = s - 1
    # (ε 2^μ / (1 - N^-ε))^(1/s): at ε = 0 the fraction has the limit 1 / log N.
    spread = torch.where(ε == 0, 1 / math.log(vocab), ε / -torch.expm1(-ε * math.log(vocab)))
    k = (spread * 2**mu) ** (1 / s)
    # One token has no exponent.
    return k.nan_to_num(nan=1.0).clamp(1, vocab).long()


def _in_order(terms: Tensor) -> Tensor:
    """The sum over the last dimension, in the same order for every batch size."""
    return terms.cumsum(dim=-1)[..., -1]
