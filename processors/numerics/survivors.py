"""The tokens above a floor, for processors that run on the host."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.sampling.candidates import Candidates

Ints = NDArray[np.int64]

_FEW = 4
"""Survivors are worth a list of their own up to one part in so many of the vocabulary."""


def survivors(logits: Tensor, floor: Tensor) -> Candidates | None:
    """
    The tokens whose logits are at least *floor*; None if in some column they are not few.

    Args:
        logits: ``[batch, width, vocab]`` on the host.

        floor: ``[batch, width, 1]``. ``-inf`` leaves no token out that has a finite logit.
    """
    vocab = logits.shape[-1]
    lowest = floor.numpy(force=True).reshape(-1, 1)
    # What is -inf does not survive a floor of -inf.
    lowest = np.maximum(lowest, np.finfo(lowest.dtype).min)
    above = logits.numpy(force=True).reshape(-1, vocab) >= lowest
    if not are_few(map(np.count_nonzero, above), vocab):
        return None
    return candidates(logits, [np.flatnonzero(column) for column in above])


def candidates(logits: Tensor, ids: Sequence[Ints]) -> Candidates:
    """
    The tokens *ids*, as what is left of the vocabulary.

    Args:
        logits: ``[batch, width, vocab]`` on the host.

        ids: Those of each column, ascending, the columns of the first row first.
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
            # Behind them the last one is repeated, at -inf: ids ascend to the end.
            padded[row, count:] = found[-1]
    shape = (batch, width, most)
    return Candidates(torch.from_numpy(padded).view(shape), torch.from_numpy(left).view(shape), vocab)


def are_few(counts: Iterable[int], vocab: int) -> bool:
    """Whether so many tokens in each column are worth a list of their own."""
    return max(counts) * _FEW <= vocab


def mask_below(logits: Tensor, floor: Tensor) -> Tensor:
    """``[batch, width, vocab]`` logits, ``-inf`` where they are below *floor* ``[batch, width, 1]``."""
    vocab = logits.shape[-1]
    below = torch.nextafter(floor, torch.tensor(-torch.inf)).flatten().tolist()
    masked = torch.empty_like(logits, memory_format=torch.contiguous_format)
    for row, low, out in zip(logits.reshape(-1, vocab), below, masked.view(-1, vocab), strict=True):
        # One pass, where a mask and a fill are three slow ones.
        torch.ops.aten.threshold.out(row, low, -torch.inf, out=out)
    return masked
