"""The distribution of a guess that was not drawn."""

import torch
from torch import Tensor


def point_mass(ids: Tensor, scores: Tensor) -> Tensor:
    """
    Logits of certainty: 0 at each guess, ``-inf`` elsewhere.

    Args:
        ids: Guesses, ``[batch, k]``. Where there is none, some token's mass, which nobody looks at.

        scores: Logits ``[..., vocab]`` of the vocabulary and dtype wanted.

    Returns:
        ``[batch, k, vocab]``.
    """
    vocab = scores.shape[-1]
    logits = scores.new_full((*ids.shape, vocab), -torch.inf)
    return logits.scatter_(-1, ids.clamp(0, vocab - 1)[..., None], 0.0)
