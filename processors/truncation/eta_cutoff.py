"""Eta cutoff: a probability floor that falls with the entropy."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.likelihood import entropy, relative
from ..numerics.ranking import kth_largest
from ..parameter import as_reals, is_scalar, one_integer, per_row, real


@attrs.frozen(eq=False)
class EtaCutoff(Composable):
    """
    Drop tokens with a probability below η = min(ε, √ε exp(-entropy)).

    A flat distribution lowers the floor. A token at exactly η stays, as do the *min_tokens* most
    likely tokens and their ties. Typically 3e-4 to 4e-3; no-op at 0.

    Hewitt, Manning and Liang, 2022, `Truncation Sampling as Language Model Desmoothing
    <https://arxiv.org/abs/2210.15191>`_.
    """

    keeps_argmax: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = False  # sums in float64

    epsilon: float | Tensor = attrs.field(
        converter=as_reals, validator=real("in [0, 1)", lambda epsilon: (epsilon >= 0) & (epsilon < 1))
    )
    """ε in the paper, a probability. One for all rows, or ``[batch]``."""

    min_tokens: int = attrs.field(default=1, validator=one_integer(">= 1", lambda n: n >= 1))
    """Minimum number of tokens kept in every row."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask unlikely tokens of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.epsilon, 0.0):
            return logits
        gaps, weights, total = relative(logits)
        ε = per_row("epsilon", self.epsilon, total)
        # √ε exp(-entropy) as one square root, since ε may be a number or a tensor.
        η = (ε * (-2.0 * entropy(gaps, weights, total)).exp()).sqrt().clamp(max=ε)
        tail = (weights < (η * total).to(logits.dtype)) & (logits < kth_largest(logits, self.min_tokens))
        return logits.masked_fill(tail, -torch.inf)
