"""A linear layer whose weights are 8-bit floats with one scale for each output."""

import torch
from torch import Tensor, nn

from .int8_linear import Int8Linear, least_scale

FLOAT8 = torch.float8_e4m3fn
"""
Four bits of exponent and three of mantissa: Micikevicius et al., 2022, `FP8 Formats for Deep Learning
<https://arxiv.org/abs/2209.05433>`_. NVIDIA has it from compute capability 8.9 on.
"""


class Float8Linear(Int8Linear):
    """
    As :class:`~.int8_linear.Int8Linear`, with 8-bit floats in place of the integers.

    A weight is off by up to a sixteenth of its own size, where an integer is off by up to half a
    254th of the row's largest: small weights keep more of themselves, and large ones less. Activations
    keep their dtype.
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
        # Rounded to its dtype before it divides, so that its own rounding is no error.
        scale = (largest / limit).clamp(min=least_scale(weight.dtype)).to(weight.dtype)
        # What is above the largest becomes NaN.
        scaled = (wide / scale.to(wide.dtype)[:, None]).clamp_(-limit, limit)
        return cls(scaled.to(FLOAT8).contiguous(), scale, bias)

    @classmethod
    def empty(
        cls, out_features: int, in_features: int, bias: nn.Parameter | None, dtype: torch.dtype
    ) -> "Float8Linear":
        """One of that size, on the default device, whose numbers are still to come."""
        return cls(
            torch.empty(out_features, in_features, dtype=FLOAT8), torch.empty(out_features, dtype=dtype), bias
        )

    @property
    def storage(self) -> str:
        """What a manifest says of it."""
        return "float8"
