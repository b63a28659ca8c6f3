"""A floor that moves with the likeliest token."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ..decoding.history import History
from .chain import Composable
from .parameter import as_reals, is_scalar, per_row, real


@attrs.frozen(eq=False)
class MinP(Composable):
    """
    Drop the tokens that are less than *p* times as likely as the likeliest.

    A token that is exactly *p* times as likely stays. Typically 0.01-0.2; no-op at 0.

    Nguyen et al., 2024, `Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM
    Outputs <https://arxiv.org/abs/2407.01082>`_, section 3.
    """

    keeps_argmax: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = True

    p: float | Tensor = attrs.field(
        converter=as_reals, validator=real("in [0, 1]", lambda p: (p >= 0) & (p <= 1))
    )
    """One for all rows, or ``[batch]``."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask the unlikely of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.p, 0.0):
            return logits
        probs = logits.softmax(dim=-1)
        floor = per_row("p", self.p, logits) * probs.amax(dim=-1, keepdim=True)
        return logits.masked_fill(probs < floor, -torch.inf)
