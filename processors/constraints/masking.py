"""Masking of logits by token id."""

import torch
from torch import Tensor


def keep_only(logits: Tensor, index: Tensor) -> Tensor:
    """
    Mask all tokens except a few.

    Args:
        logits: ``[batch, width, vocab]``, not modified.

        index: The tokens to keep, ``[batch, width, n]``.

    Returns:
        ``[batch, width, vocab]``. Kept tokens keep their logit, so forbidden ones stay forbidden.
    """
    return torch.full_like(logits, -torch.inf).scatter(-1, index, logits.gather(-1, index))


def forbid_where(condition: Tensor, logits: Tensor, index: Tensor) -> Tensor:
    """
    Mask a few tokens in the columns where *condition* is True.

    Args:
        condition: ``[batch, width, 1]`` bool.

        logits: ``[batch, width, vocab]``, not modified.

        index: The tokens to forbid, ``[batch, width, n]``.

    Returns:
        ``[batch, width, vocab]``.
    """
    return logits.scatter(-1, index, logits.gather(-1, index).masked_fill(condition, -torch.inf))
