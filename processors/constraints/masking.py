"""Forbidding some tokens, or all but some."""

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


def forbid_where(condition: Tensor, logits: Tensor, index: Tensor) -> Tensor:
    """
    Mask a few tokens in the columns where *condition* holds.

    Args:
        condition: ``[batch, width, 1]`` bool.

        logits: ``[batch, width, vocab]``, not modified.

        index: The tokens to forbid, ``[batch, width, n]``.

    Returns:
        ``[batch, width, vocab]``.
    """
    return logits.scatter(-1, index, logits.gather(-1, index).masked_fill(condition, -torch.inf))
