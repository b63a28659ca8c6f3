"""Logits to log-probabilities."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable


@attrs.frozen(eq=False)
class Renormalise(Composable):
    """
    Subtract a number from each row, so that the probabilities add up to 1.

    The distribution stays as it is. Whoever reads scores wants it at the end of a chain, and a
    processor that is not invariant to a shift of the logits after one that cuts. A row without
    a token is left alone.
    """

    keeps_argmax: ClassVar[bool] = False  # beside a large constant two logits may round to one
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False  # the sum rounds otherwise over the survivors alone
    device_safe: ClassVar[bool] = True

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Normalise ``[batch, width, vocab]`` logits, which are not modified."""
        # In a row that is all -inf the softmax is NaN.
        return torch.where(logits == -torch.inf, logits, logits.log_softmax(dim=-1))
