"""Text of a sampled surprise."""

import math
from typing import Any, ClassVar

import attrs
import torch
from attrs import validators
from torch import Tensor

from ..history import History
from ..validation import a_whole_number, as_real, one_real
from .sample import Sample
from .stateful_sampler import StatefulRun

ZIPF_TOKENS = 100
"""From how many of the likeliest tokens version 1 estimates the exponent. m in the paper."""


def _one_or_two(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value not in (1, 2) or isinstance(value, bool):
        raise ValueError(f"'{attribute.name}' must be 1 or 2: got {value!r}")


@attrs.frozen(eq=False)
class Mirostat:
    """
    Draw from as many likely tokens as keep the text's surprise at *tau* bits a token.

    A token's surprise is -log₂ of its probability. Tokens beyond a limit *mu* go, the likeliest
    never; after each draw the limit moves against the error, by *eta* times what the surprise
    was above *tau*. Where the whole distribution is less surprising than that, all of it is
    drawn from and *mu* grows; no-op while it exceeds every surprise.

    Version 2 drops what is more surprising than *mu*. Version 1 estimates the exponent of Zipf's
    distribution from the 100 likeliest tokens, and from it how many tokens have *mu* bits among them.

    It depends on past logits: each run begins a :class:`MirostatRun` of its own, and there is no
    speculation. Put it behind a chain without truncation of its own.

    Basu et al., 2021, `Mirostat: A Neural Text Decoding Algorithm that Directly Controls
    Perplexity <https://arxiv.org/abs/2007.14966>`_, with the rules of llama.cpp: *mu* starts at
    twice *tau*, at least one token stays, and the observed surprise is that among the tokens left.
    The authors' own code looks at the model's distribution: ``of_model``. Where version
    1's limit exceeds every integer, all tokens stay; llama.cpp overflows there and keeps one.
    """

    is_stateful: ClassVar[bool] = True

    tau: float = attrs.field(
        default=5.0, converter=as_real, validator=one_real("> 0 and finite", lambda tau: 0 < tau < math.inf)
    )
    """The surprise to keep, in bits. Typically 3-6."""

    eta: float = attrs.field(
        default=0.1, converter=as_real, validator=one_real("> 0 and finite", lambda eta: 0 < eta < math.inf)
    )
    """How fast the limit moves."""

    version: int = attrs.field(default=2, validator=_one_or_two)
    """1 or 2."""

    seed: int = attrs.field(default=0, validator=a_whole_number)
    """Any integer. Equal seeds, streams and logits give equal text."""

    of_model: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """Whether the observed surprise is that in the whole distribution, not among the tokens left."""

    def begin(self, batch: int) -> "MirostatRun":
        """The sampler of one run over *batch* rows."""
        return MirostatRun(batch, self)


@attrs.define(eq=False)
class MirostatRun(StatefulRun):
    """One run of :class:`Mirostat`."""

    settings: Mirostat

    mu: Tensor = attrs.field(init=False)
    """``[batch]`` float64: each row's limit, in bits."""

    @mu.default
    def _twice_tau(self) -> Tensor:
        return torch.full((self.batch,), 2 * self.settings.tau, dtype=torch.float64)

    def _sample(self, logits: Tensor, history: History, advancing: Tensor) -> Tensor:
        surprise = _surprise(logits[:, 0])
        keep = _below_limit if self.settings.version == 2 else _by_zipf
        kept = logits.masked_fill(~keep(surprise, self.mu)[:, None], -torch.inf)
        sampled = Sample()(kept, history)
        observed = surprise if self.settings.of_model else _surprise(kept[:, 0])
        error = observed.gather(-1, sampled)[:, 0] - self.settings.tau
        # A row that has no token left ends here: it has nothing to learn.
        learning = advancing & error.isfinite()
        self.mu = torch.where(learning, self.mu - self.settings.eta * error, self.mu)
        return sampled[:, 0]


def _surprise(logits: Tensor) -> Tensor:
    """``[batch, vocab]`` float64, in bits."""
    return logits.double().log_softmax(dim=-1) / -math.log(2)


def _below_limit(surprise: Tensor, mu: Tensor) -> Tensor:
    """Which tokens are no more surprising than *mu* ``[batch]``, ``[batch, vocab]`` bool."""
    most_probable = surprise.argmin(dim=-1, keepdim=True)
    return (surprise <= mu[:, None]).scatter(-1, most_probable, True)


def _by_zipf(surprise: Tensor, mu: Tensor) -> Tensor:
    """The k likeliest tokens, ``[batch, vocab]`` bool, k by Zipf's distribution."""
    # A stable sort, for which of equals are kept must not depend on a machine's sorting network.
    ascending, order = surprise.sort(dim=-1, stable=True)
    k = _zipf_k(ascending, mu)
    within = torch.arange(surprise.shape[-1]) < k[:, None]
    return torch.zeros_like(within).scatter(-1, order, within)


def _zipf_k(surprise: Tensor, mu: Tensor) -> Tensor:
    """How many of the likeliest tokens to keep, ``[batch]``; *surprise* ``[batch, vocab]`` ascending."""
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
    # Of one token there is no exponent.
    return k.nan_to_num(nan=1.0).clamp(1, vocab).long()


def _in_order(terms: Tensor) -> Tensor:
    """The sum over the last dimension, added up in the same order in every batch."""
    return terms.cumsum(dim=-1)[..., -1]
