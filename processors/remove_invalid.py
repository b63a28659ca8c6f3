"""Making numbers of what is none."""

import math
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from ..decoding.history import History
from .chain import Composable


def _check_nan(instance: Any, attribute: "attrs.Attribute[float]", nan: float) -> None:
    if math.isnan(nan) or nan == math.inf:
        raise ValueError(f"'nan' must be a number or -inf: got {nan}")


@attrs.frozen(eq=False)
class RemoveInvalid(Composable):
    """
    Forbid the tokens whose logit is NaN, and make ``+inf`` the largest finite number.

    ``-inf`` stays: it is a mask. Hugging Face makes 0 of NaN, which can be the largest logit of
    all, and the lowest finite number of ``-inf``, which lets a forbidden token in again. A hard
    constraint: it leaves a row of NaN without a token.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = True

    nan: float = attrs.field(default=-math.inf, converter=float, validator=_check_nan)
    """What NaN becomes. 0 is Hugging Face's."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Repair ``[batch, width, vocab]`` logits, which are not modified."""
        return torch.nan_to_num(logits, nan=self.nan, posinf=None, neginf=-math.inf)
