"""Random weights for tests of linear layers with a scale per row."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

# Rounding of the result and of the bias added to it.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float64: 1e-12}


def weight_of(out_features: int, in_features: int, size: float, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random weights whose rows differ widely in magnitude."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out_features, in_features, generator=generator, dtype=torch.float64)
    rows = torch.logspace(-1, 1, out_features, dtype=torch.float64)[:, None]
    return (weight * rows * size).to(dtype)


def shapes(most: int) -> dict[str, st.SearchStrategy[Any]]:
    """Arguments of :func:`weight_of`, for layers of up to *most* features."""
    return {
        "out_features": st.integers(1, most),
        "in_features": st.integers(1, most),
        "size": st.sampled_from([1e-3, 1.0, 30.0]),
        "dtype": st.sampled_from(list(ROUNDING)),
    }
