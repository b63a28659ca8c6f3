"""Point-mass distribution of draft tokens that were not sampled."""

import torch
from torch import Tensor


def point_mass(ids: Tensor, scores: Tensor) -> Tensor:
    """
    Logits of a point mass: 0 at each draft token, ``-inf`` elsewhere.

    Args:
        ids: Draft tokens, ``[batch, k]``. Columns of -1 get an arbitrary token, which is ignored.

        scores: Logits ``[..., vocab]`` that determine vocabulary size and dtype.

    Returns:
        ``[batch, k, vocab]``.
    """
    vocab = scores.shape[-1]
    logits = scores.new_full((*ids.shape, vocab), -torch.inf)
    return logits.scatter_(-1, ids.clamp(0, vocab - 1)[..., None], 0.0)
