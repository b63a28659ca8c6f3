"""The largest of many logits, and how far it is ahead."""

import numpy as np
import torch
from torch import Tensor


def top_tokens(logits: Tensor, n: int) -> Tensor:
    """
    The *n* largest of each row, of equals the lowest id first.

    Args:
        logits: ``[..., vocab]``; NaN counts as ``-inf``.

        n: From 1 to vocab.

    Returns:
        Ids ``[..., n]``, the largest first.
    """
    known = np.fmax(logits.numpy(force=True), -np.inf)
    # Numpy's partition takes thirty times as long where most of them are -inf.
    last = torch.from_numpy(known).topk(n, dim=-1).values[..., -1].numpy()
    ids = np.empty((*last.shape, n), dtype=np.int64)
    for cell in np.ndindex(*last.shape):
        scores = known[cell]
        above = np.flatnonzero(scores > last[cell])
        # Of those that tie with the last, as many as there is room for: the lowest ids. Where that
        # is what has been forbidden, most of the vocabulary perhaps, the first n ids have enough.
        tied = scores[:n] if last[cell] == -np.inf else scores
        level = np.flatnonzero(tied == last[cell])[: n - len(above)]
        ids[cell] = np.concatenate([above[np.argsort(-scores[above], kind="stable")], level])
    return torch.from_numpy(ids)


def top2_margin(scores: Tensor) -> Tensor:
    """``[..., n]`` to the largest less the second largest, ``[...]``; infinite where there is no second."""
    if scores.shape[-1] == 1:
        return torch.full_like(scores[..., 0], torch.inf)
    first, second = scores.topk(2, dim=-1).values.unbind(dim=-1)
    return first - second
