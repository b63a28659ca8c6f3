"""Linear layer with float8 weights and one scale per output."""

import torch
from torch import Tensor, nn

from .int8_linear import Int8Linear, min_scale

FLOAT8 = torch.float8_e4m3fn
"""
E4M3, four bits of exponent and three of mantissa: Micikevicius et al., 2022, `FP8 Formats for Deep
Learning <https://arxiv.org/abs/2209.05433>`_. NVIDIA GPUs support it from compute capability 8.9 on.
"""


class Float8Linear(Int8Linear):
    """
    :class:`~.int8_linear.Int8Linear` with float8 instead of int8 weights.

    The error of a weight is at most 1/16 of its own magnitude, that of int8 at most 1/508 of the row's
    largest: float8 is more accurate for small weights, int8 for large ones. Activations keep their dtype.
    """

    @classmethod
    def of(cls, weight: Tensor, bias: nn.Parameter | None) -> "Float8Linear":
        """
        Quantise *weight*, ``[out, in]``, which is not modified.

        Raises:
            ValueError: A weight is not finite.
        """
        wide = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
        largest = wide.abs().amax(dim=1) if weight.numel() else wide.new_zeros(weight.shape[0])
        if not bool(largest.isfinite().all()):
            raise ValueError("a weight must be finite to be quantised: got inf or nan")
        limit = torch.finfo(FLOAT8).max
        # Rounded to its dtype before the division, so that its rounding adds no error.
        scale = (largest / limit).clamp(min=min_scale(weight.dtype)).to(weight.dtype)
        # A value above the largest float8 would become NaN.
        scaled = (wide / scale.to(wide.dtype)[:, None]).clamp_(-limit, limit)
        return cls(scaled.to(FLOAT8).contiguous(), scale, bias)

    @classmethod
    def empty(
        cls, out_features: int, in_features: int, bias: nn.Parameter | None, dtype: torch.dtype
    ) -> "Float8Linear":
        """A layer of that size with uninitialised weights, on the default device."""
        return cls(
            torch.empty(out_features, in_features, dtype=FLOAT8), torch.empty(out_features, dtype=dtype), bias
        )

    @property
    def storage(self) -> str:
        """Name of the format in a manifest."""
        return "float8"
