"""How far the largest of some numbers is ahead."""

import torch
from torch import Tensor


def lead(scores: Tensor) -> Tensor:
    """``[..., n]`` to the largest less the second largest, ``[...]``; infinite where there is no second."""
    if scores.shape[-1] == 1:
        return torch.full_like(scores[..., 0], torch.inf)
    first, second = scores.topk(2, dim=-1).values.unbind(dim=-1)
    return first - second
