"""The largest logits and the margin between the first two."""

import numpy as np
import torch
from torch import Tensor


def top_tokens(logits: Tensor, n: int) -> Tensor:
    """
    The *n* largest of each row, ties by lowest id.

    Args:
        logits: ``[..., vocab]``; NaN counts as ``-inf``.

        n: From 1 to vocab.

    Returns:
        Ids ``[..., n]``, in descending order of logit.
    """
    known = np.fmax(logits.numpy(force=True), -np.inf)
    # Numpy's partition takes thirty times as long if most logits are -inf.
    last = torch.from_numpy(known).topk(n, dim=-1).values[..., -1].numpy()
    ids = np.empty((*last.shape, n), dtype=np.int64)
    for cell in np.ndindex(*last.shape):
        scores = known[cell]
        above = np.flatnonzero(scores > last[cell])
        # Fill up with the lowest ids that tie with the last. If these are forbidden tokens, perhaps
        # most of the vocabulary, the first n ids contain enough of them.
        tied = scores[:n] if last[cell] == -np.inf else scores
        level = np.flatnonzero(tied == last[cell])[: n - len(above)]
        ids[cell] = np.concatenate([above[np.argsort(-scores[above], kind="stable")], level])
    return torch.from_numpy(ids)


def top2_margin(scores: Tensor) -> Tensor:
    """``[..., n]`` to the largest minus the second largest, ``[...]``; infinite if there is no second."""
    if scores.shape[-1] == 1:
        return torch.full_like(scores[..., 0], torch.inf)
    first, second = scores.topk(2, dim=-1).values.unbind(dim=-1)
    return first - second
