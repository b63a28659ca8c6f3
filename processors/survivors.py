"""The tokens above a floor, for processors that run on the host."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import threshold

from ..decoding.candidates import Candidates

_FEW = 4
"""Survivors are worth a list of their own up to one part in so many of the vocabulary."""


def survivors(logits: Tensor, floor: Tensor) -> Candidates | None:
    """
    The tokens whose logits are at least *floor*; None if in some column they are not few.

    Args:
        logits: ``[batch, width, vocab]`` on the host.

        floor: ``[batch, width, 1]``. ``-inf`` leaves no token out that has a finite logit.
    """
    batch, width, vocab = logits.shape
    values = logits.numpy(force=True).reshape(-1, vocab)
    # What is -inf does not survive a floor of -inf.
    above = values >= floor.clamp(min=torch.finfo(floor.dtype).min).numpy(force=True).reshape(-1, 1)
    most = max(np.count_nonzero(column) for column in above)
    if most * _FEW > vocab:
        return None
    most = max(most, 1)
    ids = np.zeros((len(values), most), dtype=np.int64)
    left = np.full((len(values), most), -np.inf, dtype=values.dtype)
    for row, column in enumerate(above):
        found = np.flatnonzero(column)
        ids[row, : len(found)] = found
        # Behind them the last one is repeated, at -inf: ids ascend to the end.
        ids[row, len(found) :] = found[-1:].sum()
        left[row, : len(found)] = values[row, found]
    shape = (batch, width, most)
    return Candidates(torch.from_numpy(ids).view(shape), torch.from_numpy(left).view(shape), vocab)


def mask_below(logits: Tensor, floor: Tensor) -> Tensor:
    """``[batch, width, vocab]`` logits, ``-inf`` where they are below *floor* ``[batch, width, 1]``."""
    batch, width, vocab = logits.shape
    below = torch.nextafter(floor, torch.tensor(-torch.inf)).flatten().tolist()
    # One pass, where a mask and a fill are three slow ones.
    columns = [
        threshold(row, low, -torch.inf) for row, low in zip(logits.view(-1, vocab), below, strict=True)
    ]
    return torch.stack(columns).view(batch, width, vocab)
