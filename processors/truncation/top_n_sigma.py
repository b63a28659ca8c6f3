"""Top-nσ: a floor n standard deviations below the largest logit."""

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
    Drop tokens whose logit is more than *n* standard deviations below the largest.

    The standard deviation is taken over unmasked tokens and divides by their number, as in
    llama.cpp (others divide by one less). Temperature does not change the kept set. Typically 1; 0 is off.

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
        """Mask low logits of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.n, 0.0):
            return logits
        gaps = below_best(logits)
        σ = _standard_deviation(gaps)
        n = per_row("n", self.n, σ)
        tail = (gaps < (-n * σ).to(logits.dtype)) & (n > 0)
        return logits.masked_fill(tail, -torch.inf)


def _standard_deviation(gaps: Tensor) -> Tensor:
    """Of the finite gaps ``[..., n]`` (largest 0): ``[..., 1]`` float64, NaN if all are equal."""
    count = (gaps > -torch.inf).sum(dim=-1, keepdim=True)
    finite = gaps.masked_fill(gaps == -torch.inf, 0.0).double()
    spread = -finite.amin(dim=-1, keepdim=True)
    # Scaled so that no term exceeds 1. Equal logits give 0 / 0 = NaN, and no gap is below NaN.
    scaled = finite / spread
    mean = exact_sum(scaled) / count
    variance = exact_sum(scaled.square()) / count - mean.square()
    return spread * variance.sqrt()
