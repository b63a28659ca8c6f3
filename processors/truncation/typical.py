"""Locally typical sampling."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.exact_sum import whole_weights
from ..numerics.likelihood import entropy, relative
from ..parameter import as_reals, is_scalar, one_integer, per_row, real


@attrs.frozen(eq=False)
class Typical(Composable):
    """
    Keep the tokens whose surprisal -log p is closest to the entropy, up to a total of *mass*.

    The smallest such set that reaches *mass*; equally typical tokens are kept or dropped together,
    also among the *min_tokens* most typical, which always stay. The most likely token may be dropped.
    Typically 0.2-0.95; no-op at 1. Sorts the vocabulary: cheap after a top-k.

    Meister, Pimentel, Wiher and Cotterell, 2022, `Locally Typical Sampling
    <https://arxiv.org/abs/2202.00666>`_.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = False  # sorts

    mass: float | Tensor = attrs.field(
        converter=as_reals, validator=real("in (0, 1]", lambda mass: (mass > 0) & (mass <= 1))
    )
    """τ in the paper, a probability. One for all rows, or ``[batch]``."""

    min_tokens: int = attrs.field(default=1, validator=one_integer(">= 1", lambda n: n >= 1))
    """Minimum number of tokens kept in every row."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask atypical tokens of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.mass, 1.0):
            return logits
        deviation = _deviation(logits)
        ordered, order = deviation.sort(dim=-1, stable=True)
        held = whole_weights(logits).gather(-1, order).cumsum(dim=-1)
        τ = per_row("mass", self.mass, held)
        short = (held < τ * held[..., -1:]).sum(dim=-1, keepdim=True)
        last = short.clamp(min=self.min_tokens - 1).clamp(max=logits.shape[-1] - 1)
        # With mass 1 even tokens whose weight rounds to 0 stay.
        untypical = (deviation > ordered.gather(-1, last)) & (τ < 1)
        return logits.masked_fill(untypical, -torch.inf)


def _deviation(logits: Tensor) -> Tensor:
    """Distance of each token's surprisal from the entropy, ``[..., n]``; ``inf`` for masked tokens."""
    gaps, weights, total = relative(logits)
    # The surprisal is log(total) - gap.
    expected = total.log() - entropy(gaps, weights, total)
    return (expected.to(logits.dtype) - gaps).abs()
