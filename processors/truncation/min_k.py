"""Min-k sampling: truncation at the steepest drop of the sorted logits."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...decoding.history import History
from ..chain import Composable
from ..parameter import as_reals, per_row, real


@attrs.frozen(eq=False)
class MinK(Composable):
    """
    Keep the tokens above the steepest step of the sorted logits.

    In descending order, the step after the *i*-th logit is weighted by 1 / *i*; ties go to the
    first. For nearly equal logits, at least *tau* / (largest - smallest logit) tokens are kept.
    Tokens tied with the last one stay too. With *tau* 0 the result does not depend on a
    temperature applied before. Masked tokens count neither in the order nor in the range. Never a
    no-op. Sorts the vocabulary: cheap after a top-k.

    Ding, Li, Garces Arias, Aßenmacher, Heumann and Zhang, 2026, `Min-k Sampling: Decoupling
    Truncation from Temperature Scaling via Relative Logit Dynamics
    <https://arxiv.org/abs/2604.11012>`_, algorithm 1.
    """

    keeps_argmax: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = False  # sorts

    tau: float | Tensor = attrs.field(
        default=3.0, converter=as_reals, validator=real(">= 0", lambda tau: tau >= 0)
    )
    """τ in the paper, in logits; 1-10 there. One for all rows, or ``[batch]``."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask the tokens below the step of ``[batch, width, vocab]`` logits, which are not modified."""
        ordered = logits.sort(dim=-1, descending=True).values
        last = torch.maximum(_steepest(ordered), self._fallback(ordered))
        return logits.masked_fill(logits < ordered.gather(-1, last), -torch.inf)

    def _fallback(self, ordered: Tensor) -> Tensor:
        """Rank of the last token kept by *tau* alone: ``[batch, width, 1]``, from 0."""
        lowest = ordered.masked_fill(ordered == -torch.inf, torch.inf).amin(dim=-1, keepdim=True)
        extent = ordered[..., :1].double() - lowest.double()
        # Equal logits have an extent of 0, and 0 / 0 is NaN.
        count = (per_row("tau", self.tau, extent) / extent).nan_to_num(nan=1.0)
        return count.clamp(1, ordered.shape[-1]).long() - 1


def _steepest(ordered: Tensor) -> Tensor:
    """Rank of the token before the steepest step of descending *ordered*: ``[..., 1]``, from 0."""
    following = pad(ordered[..., 1:], (0, 1), value=-torch.inf)
    rank = torch.arange(1, ordered.shape[-1] + 1, dtype=ordered.dtype, device=ordered.device)
    # There is no step after the last token.
    step = ((ordered - following) / rank).masked_fill(following == -torch.inf, 0.0)
    return step.argmax(dim=-1, keepdim=True)
