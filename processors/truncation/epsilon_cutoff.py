"""Epsilon cutoff: a fixed probability floor."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.likelihood import relative
from ..numerics.ranking import kth_largest
from ..parameter import as_reals, is_scalar, one_integer, per_row, real


@attrs.frozen(eq=False)
class EpsilonCutoff(Composable):
    """
    Drop tokens with a probability below *epsilon*.

    A token at exactly *epsilon* stays, as do the *min_tokens* most likely tokens and their
    ties. Typically 3e-4 to 9e-4; no-op at 0.

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
    """A probability. One for all rows, or ``[batch]``."""

    min_tokens: int = attrs.field(default=1, validator=one_integer(">= 1", lambda n: n >= 1))
    """Minimum number of tokens kept in every row."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask unlikely tokens of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.epsilon, 0.0):
            return logits
        _, weights, total = relative(logits)
        floor = (per_row("epsilon", self.epsilon, total) * total).to(logits.dtype)
        tail = (weights < floor) & (logits < kth_largest(logits, self.min_tokens))
        return logits.masked_fill(tail, -torch.inf)
