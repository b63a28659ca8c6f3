"""p-less sampling: a probability floor without a hyperparameter."""

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
    Drop tokens with a probability below the sum of the squared probabilities.

    The sum is the probability that two draws give the same token. It never exceeds the largest
    probability, so the most likely token stays; a uniform distribution is unchanged. No
    parameters and no neutral value.

    Tan, Wu and Howard, 2025, `p-less Sampling: A Robust Hyperparameter-Free Approach for LLM
    Decoding <https://arxiv.org/abs/2509.23234>`_. The variant p-less-norm is not implemented.
    """

    keeps_argmax: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = False  # sums in float64

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask unlikely tokens of ``[batch, width, vocab]`` logits, which are not modified."""
        _, weights, total = relative(logits)
        # p >= Σp², both sides multiplied by the total weight.
        floor = (exact_sum(weights.square()) / total).to(logits.dtype)
        return logits.masked_fill(weights < floor, -torch.inf)
