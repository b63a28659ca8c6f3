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


def kth_per_row(logits: Tensor, k: int | Tensor, largest: int) -> Tensor:
    """
    The *k*-th largest logit of each column, with one *k* or one per row.

    Args:
        logits: ``[batch, width, n]``.

        k: At least 1, or ``[batch, 1, 1]``, where a row may have 0.

        largest: The largest *k*; clamped to *n*.

    Returns:
        ``[batch, width, 1]``; ``-inf`` in rows with k = 0.
    """
    top = logits.topk(min(largest, logits.shape[-1]), dim=-1).values
    if not isinstance(k, Tensor):
        return top[..., -1:]
    last = k.clamp(1, top.shape[-1]) - 1
    return top.gather(-1, last.expand(-1, logits.shape[1], 1)).masked_fill(k == 0, -torch.inf)


def beyond_kth(logits: Tensor, kth: Tensor, k: int | Tensor) -> Tensor:
    """Mask of the tokens below the *kth* logit, or tied with it beyond the *k* lowest ids."""
    tied = logits == kth
    room = k - (logits > kth).sum(dim=-1, keepdim=True)
    # A row with k = 0 has no k-th logit.
    return (logits < kth) | (tied & (tied.cumsum(dim=-1) > room) & (kth > -torch.inf))


def ascending_order(logits: Tensor, ties: str) -> tuple[Tensor, Tensor]:
    """
    The logits in ascending order, and their ids.

    Args:
        logits: ``[..., n]``.

        ties: Order of equal logits: ``"last"`` by ascending id, so that those with the highest come
            last; ``"first"`` by descending id.

    Returns:
        Both ``[..., n]``. A stable sort, so that ties do not depend on the machine.
    """
    if ties != "first":
        ascending, order = logits.sort(dim=-1, stable=True)
        return ascending, order
    ascending, order = logits.flip(-1).sort(dim=-1, stable=True)
    return ascending, logits.shape[-1] - 1 - order
