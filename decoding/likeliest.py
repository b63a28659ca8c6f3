"""The largest of many logits."""

import numpy as np
import torch
from torch import Tensor


def likeliest(logits: Tensor, n: int) -> Tensor:
    """
    The *n* largest of each row, of equals the lowest id first.

    Args:
        logits: ``[..., vocab]``; NaN counts as ``-inf``.

        n: From 1 to vocab.

    Returns:
        Ids ``[..., n]``, the largest first.
    """
    # On the host numpy looks through them some ten times as fast.
    known = np.fmax(logits.numpy(force=True), -np.inf)
    last = np.partition(known, -n, axis=-1)[..., -n]
    ids = np.empty((*last.shape, n), dtype=np.int64)
    for cell in np.ndindex(*last.shape):
        scores = known[cell]
        above = np.flatnonzero(scores > last[cell])
        # Of those that tie with the last, as many as there is room for: the lowest ids.
        level = np.flatnonzero(scores == last[cell])[: n - len(above)]
        ids[cell] = np.concatenate([above[np.argsort(-scores[above], kind="stable")], level])
    return torch.from_numpy(ids)
