"""Tokens above a floor, as candidates; on the host."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from .candidates import Candidates
from .few_tokens import Ints

_FEW = 4
"""Survivors become candidates up to this fraction (1 / 4) of the vocabulary."""


def survivors(logits: Tensor, floor: Tensor) -> Candidates | None:
    """
    Tokens whose logits are at least *floor*; None if some column has too many.

    Args:
        logits: ``[batch, width, vocab]`` on the host.

        floor: ``[batch, width, 1]``. ``-inf`` keeps every token with a finite logit.
    """
    vocab = logits.shape[-1]
    lowest = floor.numpy(force=True).reshape(-1, 1)
    # Drop -inf even if the floor is -inf.
    lowest = np.maximum(lowest, np.finfo(lowest.dtype).min)
    above = logits.numpy(force=True).reshape(-1, vocab) >= lowest
    if not are_few(map(np.count_nonzero, above), vocab):
        return None
    return candidates(logits, [np.flatnonzero(column) for column in above])


def candidates(logits: Tensor, ids: Sequence[Ints]) -> Candidates:
    """
    Candidates made of the tokens *ids*.

    Args:
        logits: ``[batch, width, vocab]`` on the host.

        ids: Ids of each column, ascending, in row-major order.
    """
    batch, width, vocab = logits.shape
    most = max(1, *map(len, ids))
    padded = np.zeros((len(ids), most), dtype=np.int64)
    left = np.full((len(ids), most), -np.inf, dtype=logits.numpy(force=True).dtype)
    for row, (found, values) in enumerate(zip(ids, logits.numpy(force=True).reshape(-1, vocab), strict=True)):
        count = len(found)
        padded[row, :count] = found
        left[row, :count] = values[found]
        if 0 < count < most:
            # Padded with the last id at -inf, so that ids ascend to the end.
            padded[row, count:] = found[-1]
    shape = (batch, width, most)
    return Candidates(torch.from_numpy(padded).view(shape), torch.from_numpy(left).view(shape), vocab)


def are_few(counts: Iterable[int], vocab: int) -> bool:
    """Whether *counts* tokens per column are few enough for candidates."""
    return max(counts) * _FEW <= vocab


def mask_below(logits: Tensor, floor: Tensor) -> Tensor:
    """``[batch, width, vocab]`` logits, ``-inf`` where they are below *floor* ``[batch, width, 1]``."""
    vocab = logits.shape[-1]
    below = torch.nextafter(floor, torch.tensor(-torch.inf)).flatten().tolist()
    masked = torch.empty_like(logits, memory_format=torch.contiguous_format)
    for row, low, out in zip(logits.reshape(-1, vocab), below, masked.view(-1, vocab), strict=True):
        # One pass; a mask and a fill take three slower ones.
        torch.ops.aten.threshold.out(row, low, -torch.inf, out=out)
    return masked
