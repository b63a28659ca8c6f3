"""Removal of NaN and infinite logits."""

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
    Forbid tokens with a NaN logit and replace ``+inf`` by the largest finite number.

    ``-inf`` is a mask and stays. Hugging Face replaces NaN by 0, which can be the largest logit, and
    ``-inf`` by the lowest finite number, which allows a forbidden token again. A hard constraint:
    it leaves a column of NaN alone, which is how a decoder reports an overflow, without a token.
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
    """Replacement of NaN. Hugging Face uses 0, which hides an overflow: any token may follow."""

    @property
    def shift_invariant(self) -> bool:
        """Whether a constant added to a row leaves the distribution unchanged: if NaN is masked."""
        return self.nan == -math.inf

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Replace invalid values of ``[batch, width, vocab]`` logits, which are not modified."""
        return torch.nan_to_num(logits, nan=self.nan, posinf=None, neginf=-math.inf)
