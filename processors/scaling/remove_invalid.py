"""Replacing what is not a number."""

import math
from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.validation import as_real, one_real
from ..chain import Composable
from ..parameter import FLOAT32


@attrs.frozen(eq=False)
class RemoveInvalid(Composable):
    """
    Forbid the tokens whose logit is NaN, and make ``+inf`` the largest finite number.

    ``-inf`` stays: it is a mask. Hugging Face makes 0 of NaN, which can be the largest logit of
    all, and the lowest finite number of ``-inf``, which lets a forbidden token in again. A hard
    constraint: it leaves a row of NaN without a token.
    """

    keeps_argmax: ClassVar[bool] = False
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = True

    nan: float = attrs.field(
        default=-math.inf,
        converter=as_real,
        validator=one_real(
            "finite in float32, or -inf", lambda nan: nan == -math.inf or abs(nan) <= FLOAT32.max
        ),
    )
    """What NaN becomes. 0 is Hugging Face's."""

    @property
    def shift_invariant(self) -> bool:
        """Whether a constant added to a row changes nothing: where NaN becomes no number of its own."""
        return self.nan == -math.inf

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Repair ``[batch, width, vocab]`` logits, which are not modified."""
        return torch.nan_to_num(logits, nan=self.nan, posinf=None, neginf=-math.inf)
