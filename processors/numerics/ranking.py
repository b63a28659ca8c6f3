"""Where tokens stand in a row's order."""

import torch
from torch import Tensor


def below_best(logits: Tensor) -> Tensor:
    """Each logit less its row's largest, ``[..., n]``; ``-inf`` stays."""
    best = logits.amax(dim=-1, keepdim=True)
    return logits - best.masked_fill(best == -torch.inf, 0.0)


def kth_largest(logits: Tensor, k: int) -> Tensor:
    """
    The *k*-th largest of each row.

    Args:
        logits: ``[..., n]``.

        k: At least 1; beyond *n* the smallest counts.

    Returns:
        ``[..., 1]``.
    """
    if k == 1:  # many times faster than a search for several
        return logits.amax(dim=-1, keepdim=True)
    return logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
