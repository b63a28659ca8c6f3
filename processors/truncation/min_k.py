"""Cutting where the logits fall steepest."""

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

    With the logits in descending order, the step after the *i*-th counts by its height over
    *i*, so early steps count most; of equal ones the first. Where the logits hardly differ
    there is no such step: at least *tau* over their range stay. Tokens tied with the last one
    stay too. Only *tau* makes it matter whether a temperature comes before. Masked tokens are
    no part of the order or the range. Never a no-op: with *tau* 0 the step alone decides.
    Sorts the vocabulary: cheap after a top-k.

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
        """Mask what is below the step in ``[batch, width, vocab]`` logits, which are not modified."""
        ordered = logits.sort(dim=-1, descending=True).values
        last = torch.maximum(_steepest(ordered), self._fallback(ordered))
        return logits.masked_fill(logits < ordered.gather(-1, last), -torch.inf)

    def _fallback(self, ordered: Tensor) -> Tensor:
        """Where the last token stands that *tau* alone keeps: ``[batch, width, 1]``, from 0."""
        lowest = ordered.masked_fill(ordered == -torch.inf, torch.inf).amin(dim=-1, keepdim=True)
        extent = ordered[..., :1].double() - lowest.double()
        # Equal logits have no extent, and 0 / 0 is no number.
        count = (per_row("tau", self.tau, extent) / extent).nan_to_num(nan=1.0)
        return count.clamp(1, ordered.shape[-1]).long() - 1


def _steepest(ordered: Tensor) -> Tensor:
    """After which token of the descending *ordered* the steepest step lies: ``[..., 1]``, from 0."""
    following = pad(ordered[..., 1:], (0, 1), value=-torch.inf)
    rank = torch.arange(1, ordered.shape[-1] + 1, dtype=ordered.dtype, device=ordered.device)
    # Behind the last token there is no step.
    step = ((ordered - following) / rank).masked_fill(following == -torch.inf, 0.0)
    return step.argmax(dim=-1, keepdim=True)
