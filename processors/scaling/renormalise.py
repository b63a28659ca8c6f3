"""Renormalisation of logits to log-probabilities."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable


@attrs.frozen(eq=False)
class Renormalise(Composable):
    """
    Subtract each row's log-sum-exp, so that the probabilities add up to 1.

    The distribution is unchanged. Use it at the end of a chain whose scores are read, and between
    a truncation and a processor that is not shift-invariant. A row without a token is unchanged.
    """

    keeps_argmax: ClassVar[bool] = False  # the subtraction may round two logits to one
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False  # the sum rounds differently over the survivors alone
    device_safe: ClassVar[bool] = True

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Normalise ``[batch, width, vocab]`` logits, which are not modified."""
        # A row that is all -inf has a softmax of NaN.
        return torch.where(logits == -torch.inf, logits, logits.log_softmax(dim=-1))
