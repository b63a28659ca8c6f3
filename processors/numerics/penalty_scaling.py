"""The formula of a penalty that scales logits."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..parameter import per_row
from .log_normaliser import log_normaliser


def penalty_scaling(penalty: float | Tensor, logits: Tensor, shift_safe: bool) -> Callable[[Tensor], Tensor]:
    """
    The elementwise formula of a repetition penalty.

    Args:
        penalty: One for all rows, or ``[batch]``.

        logits: ``[batch, width, vocab]``, unprocessed.

        shift_safe: Whether to scale the log-probability instead of the logit.

    Returns:
        A function of the logits ``[batch, width, n]`` of some tokens.
    """
    if not shift_safe:
        θ = per_row("penalty", penalty, logits)
        return lambda seen: torch.where(seen < 0, seen * θ, seen / θ)
    # θ log p plus the log-normaliser: l + (θ - 1) log p. θ - 1 is computed before the cast to
    # float32, so that θ = 1 gives the logit itself.
    more = per_row("penalty", penalty - 1, logits)
    normaliser = log_normaliser(logits)

    def scale(seen: Tensor) -> Tensor:
        log_p = (seen - normaliser).masked_fill(seen == -torch.inf, 0.0)
        return seen + more * log_p

    return scale
