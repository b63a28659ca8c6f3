"""Forbidding all but some."""

import torch
from torch import Tensor


def keep_only(logits: Tensor, index: Tensor) -> Tensor:
    """
    The logits of a few tokens, ``-inf`` for all others.

    Args:
        logits: ``[batch, width, vocab]``, not modified.

        index: The tokens to keep, ``[batch, width, n]``.

    Returns:
        ``[batch, width, vocab]``. What is kept keeps its logit: a token that was forbidden
        before stays forbidden.
    """
    return torch.full_like(logits, -torch.inf).scatter(-1, index, logits.gather(-1, index))
