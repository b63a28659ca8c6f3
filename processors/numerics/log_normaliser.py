"""Log-normaliser: the difference between logits and log-probabilities."""

import torch
from torch import Tensor


def log_normaliser(logits: Tensor) -> Tensor:
    """
    Log-sum-exp of each row: logit - normaliser = log-probability.

    Args:
        logits: ``[..., vocab]``.

    Returns:
        ``[..., 1]``; 0 for a row that is all ``-inf``.
    """
    # Via log_softmax, which sums each row in one thread. logsumexp splits a single row among
    # threads and so rounds it differently than the same row in a batch.
    best = logits.amax(dim=-1, keepdim=True)
    difference = best - logits.log_softmax(dim=-1).amax(dim=-1, keepdim=True)
    return difference.masked_fill(best == -torch.inf, 0.0)
