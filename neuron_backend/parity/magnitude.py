"""The largest of numbers that may be NaN."""

import torch
from torch import Tensor


def magnitude(*tensors: Tensor) -> float:
    """The largest absolute value in *tensors*; NaN if any is NaN, which Python's ``max`` may drop."""
    return float(torch.stack([tensor.abs().max() for tensor in tensors]).max())
