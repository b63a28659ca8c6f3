"""A floor some standard deviations below the largest logit."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.exact_sum import exact_sum
from ..numerics.ranking import below_best
from ..parameter import as_reals, is_scalar, per_row, real


@attrs.frozen(eq=False)
class TopNSigma(Composable):
    """
    Drop the logits that lie more than *n* standard deviations below the largest.

    The deviation is over the tokens that are left, masked ones apart, so what was dropped
    before matters; it divides by their number, as llama.cpp does, where others divide by one
    less. A temperature before or after makes no difference to what stays. Typically 1; 0 is off.

    Tang, Liu, Xu and Huang, 2024, `Top-nσ: Not All Logits Are You Need
    <https://arxiv.org/abs/2411.07641>`_.
    """

    keeps_argmax: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = False  # sums in float64

    n: float | Tensor = attrs.field(converter=as_reals, validator=real(">= 0 (0 is off)", lambda n: n >= 0))
    """One for all rows, or ``[batch]``."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask the low of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.n, 0.0):
            return logits
        gaps = below_best(logits)
        σ = _standard_deviation(gaps)
        n = per_row("n", self.n, σ)
        tail = (gaps < (-n * σ).to(logits.dtype)) & (n > 0)
        return logits.masked_fill(tail, -torch.inf)


def _standard_deviation(gaps: Tensor) -> Tensor:
    """Of the finite gaps, ``[..., n]`` with a largest of 0; ``[..., 1]`` float64, NaN of equal ones."""
    count = (gaps > -torch.inf).sum(dim=-1, keepdim=True)
    finite = gaps.masked_fill(gaps == -torch.inf, 0.0).double()
    spread = -finite.amin(dim=-1, keepdim=True)
    # No term of the sums exceeds 1 then, whatever the scale of the logits. Equal logits give 0 / 0,
    # and no gap is below NaN.
    scaled = finite / spread
    mean = exact_sum(scaled) / count
    variance = exact_sum(scaled.square()) / count - mean.square()
    return spread * variance.sqrt()
