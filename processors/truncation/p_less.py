"""A floor that the distribution sets itself."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.exact_sum import exact_sum
from ..numerics.likelihood import relative


@attrs.frozen(eq=False)
class PLess(Composable):
    """
    Drop the tokens that are less likely than the sum of the squared probabilities.

    That sum is the chance that two draws from the distribution give the same token. It never
    exceeds the largest probability, so the likeliest token stays; a uniform distribution stays
    whole. There is nothing to set, and never a no-op: to be off is not to be in the chain.

    Tan, Wu and Howard, 2025, `p-less Sampling: A Robust Hyperparameter-Free Approach for LLM
    Decoding <https://arxiv.org/abs/2509.23234>`_. Its variant p-less-norm is not this.
    """

    keeps_argmax: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = False  # sums in float64

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask the unlikely of ``[batch, width, vocab]`` logits, which are not modified."""
        _, weights, total = relative(logits)
        # p >= Σp², both sides times the total of the weights.
        floor = (exact_sum(weights.square()) / total).to(logits.dtype)
        return logits.masked_fill(weights < floor, -torch.inf)
