"""Masking of logits by token id."""

from collections.abc import Mapping

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


def keep_only_in(logits: Tensor, allowed: Mapping[tuple[int, int], Tensor]) -> Tensor:
    """
    Mask all tokens except a few in some columns.

    Args:
        logits: ``[batch, width, vocab]``, not modified.

        allowed: The ids to keep by row and column, ``[n]`` int64; those beyond the vocabulary are left
            out, and other columns are left as they are.

    Returns:
        ``[batch, width, vocab]``; *logits* itself if there are no such columns.
    """
    if not allowed:
        return logits
    processed = logits.clone()
    for (row, column), ids in allowed.items():
        here = logits[row, column]
        index = ids[ids < here.shape[0]].to(logits.device)
        processed[row, column] = torch.full_like(here, -torch.inf).index_copy(0, index, here[index])
    return processed
