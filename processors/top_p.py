"""Nucleus filtering."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ..decoding.history import History
from .chain import Composable
from .parameter import as_reals, is_scalar, per_row, real


@attrs.frozen(eq=False)
class TopP(Composable):
    """
    Keep the smallest set of likeliest tokens whose probability reaches *p*.

    Seen from below, as Hugging Face computes it: the least likely tokens go while they hold at
    most 1 - *p* together. At least one token stays; of equal tokens the lower id goes first.
    Typically 0.8-0.98; no-op at 1.

    Holtzman et al., 2020, `The Curious Case of Neural Text Degeneration
    <https://arxiv.org/abs/1904.09751>`_, section 3.1.
    """

    keeps_argmax: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = False  # sorts

    p: float | Tensor = attrs.field(
        converter=as_reals, validator=real("in (0, 1]", lambda p: (p > 0) & (p <= 1))
    )
    """One for all rows, or ``[batch]``."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask the tail of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.p, 1.0):
            return logits
        # Subtracted before the cast to float32: 1 - float32(0.9) is not float32(0.1).
        spared = per_row("p", 1 - self.p, logits)
        # A stable sort, for which tokens fall must not depend on a machine's sorting network.
        ascending, order = logits.sort(dim=-1, stable=True)
        mass = ascending.softmax(dim=-1).cumsum(dim=-1)
        # A row with p = 1 loses nothing, not even tokens whose probability rounds to 0.
        tail = (mass <= spared) & (spared > 0)
        tail[..., -1] = False
        return logits.masked_fill(tail.scatter(-1, order, tail), -torch.inf)
