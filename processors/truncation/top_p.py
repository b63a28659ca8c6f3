"""Nucleus (top-p) filtering."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.exact_sum import whole_weights
from ..numerics.ranking import ascending_order
from ..parameter import as_reals, is_scalar, one_integer, one_of, per_row, real


@attrs.frozen(eq=False)
class TopP(Composable):
    """
    Keep the smallest set of most likely tokens whose probability mass reaches *p*.

    Computed from below, as in Hugging Face: the least likely tokens are dropped while their total
    is at most 1 - *p*. Typically 0.8-0.98; no-op at 1.

    Probabilities are integers in units of 2^-34 of the largest and summed exactly, so the set does
    not depend on the order, the batch or the size of the vocabulary.

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
    """
    One for all rows, or ``[batch]``. A Python number is taken as its double: 0.9 is 0.90000000000000002, and
    not the float32 next to it, 0.89999998, with which Hugging Face compares float32 sums.
    """

    ties: str = attrs.field(default="last", validator=one_of("last", "first", "keep"))
    """
    Equally likely tokens at the edge of the nucleus: keep those with the highest ids (``"last"``:
    Hugging Face, vLLM, mlx-lm), those with the lowest (``"first"``: TensorRT-LLM), or all
    (``"keep"``: FlashInfer).
    """

    min_tokens: int = attrs.field(default=1, validator=one_integer(">= 1", lambda n: n >= 1))
    """Minimum number of tokens kept in every row."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask the tail of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.p, 1.0):
            return logits
        ascending, order = ascending_order(logits, self.ties)
        mass = whole_weights(ascending).cumsum(dim=-1)
        spared = per_row("p", 1 - self.p, mass) * mass[..., -1:]
        # In a row with p = 1 even tokens whose weight rounds to 0 stay.
        tail = (mass <= spared) & (spared > 0)
        tail[..., -self.min_tokens :] = False
        if self.ties == "keep":
            tail &= ascending < ascending.masked_fill(tail, torch.inf).amin(dim=-1, keepdim=True)
        return logits.masked_fill(tail.scatter(-1, order, tail), -torch.inf)
