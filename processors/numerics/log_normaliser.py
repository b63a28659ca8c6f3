"""What separates logits from log-probabilities."""

import torch
from torch import Tensor


def log_normaliser(logits: Tensor) -> Tensor:
    """
    The logarithm of the sum of the exponentials of each row.

    A logit minus this is the token's log-probability.

    Args:
        logits: ``[..., vocab]``.

    Returns:
        ``[..., 1]``; 0 for a row that is all ``-inf``.
    """
    # By way of log_softmax, which sums each row by itself. A logsumexp splits a single row
    # among threads, and so rounds a row alone otherwise than the same row in a batch.
    best = logits.amax(dim=-1, keepdim=True)
    difference = best - logits.log_softmax(dim=-1).amax(dim=-1, keepdim=True)
    return difference.masked_fill(best == -torch.inf, 0.0)
