"""Entropy thresholds."""

import attrs
import torch
from torch import Tensor

from ..history import History
from ..protocols import Finish
from ..sampling.scratch import scratch
from ..scores import Scores
from ..validation import as_real, one_real
from .composition import Stop


def entropy(logits: Tensor) -> Tensor:
    """
    The entropy of the softmax of *logits*, in nats.

    Args:
        logits: ``[batch, width, vocab]``.

    Returns:
        ``[batch, width]``, on the host; NaN where all logits are ``-inf``.
    """
    logits = logits.detach().cpu()
    log_p = torch.log_softmax(logits, dim=-1, out=scratch(logits, "log_p"))
    # -inf times 0 would be NaN.
    log_p.clamp_(min=torch.finfo(log_p.dtype).min)
    terms = torch.exp(log_p, out=scratch(logits, "p")).mul_(log_p)
    # Numpy sums each column separately: torch splits a single one among threads, so that it rounds
    # differently than in a batch.
    return torch.from_numpy(-terms.numpy().sum(axis=-1))


@attrs.frozen(eq=False)
class HighEntropy(Stop):
    """
    End a row at a token that was sampled from a distribution with an entropy above *nats*.

    The distribution is the softmax of the processed logits, which take time to build.
    For a run of uncertain tokens: ``Consecutive(n, HighEntropy(nats))``.
    """

    nats: float = attrs.field(converter=as_real, validator=one_real(">= 0", lambda nats: nats >= 0))
    """The uniform distribution over n tokens has the entropy log n: 0.69 for two, 2.3 for ten."""

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One."""
        return (Finish("high_entropy"),)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        return (entropy(scores.logits) > self.nats).long()


@attrs.frozen(eq=False)
class LowEntropy(Stop):
    """
    End a row at a token that was sampled from a distribution with an entropy below *nats*.

    The distribution is the softmax of the processed logits, which take time to build.
    """

    nats: float = attrs.field(converter=as_real, validator=one_real("> 0", lambda nats: nats > 0))
    """As for :class:`HighEntropy`."""

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One."""
        return (Finish("low_entropy"),)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        return (entropy(scores.logits) < self.nats).long()
