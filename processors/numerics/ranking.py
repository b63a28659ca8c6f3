"""Largest and k-th largest logits of a row."""

import torch
from torch import Tensor


def below_best(logits: Tensor) -> Tensor:
    """Each logit minus its row's largest, ``[..., n]``; ``-inf`` stays."""
    best = logits.amax(dim=-1, keepdim=True)
    return logits - best.masked_fill(best == -torch.inf, 0.0)


def kth_largest(logits: Tensor, k: int) -> Tensor:
    """
    The *k*-th largest logit of each row.

    Args:
        logits: ``[..., n]``.

        k: At least 1; clamped to *n*.

    Returns:
        ``[..., 1]``.
    """
    if k == 1:  # many times faster than topk
        return logits.amax(dim=-1, keepdim=True)
    return logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
