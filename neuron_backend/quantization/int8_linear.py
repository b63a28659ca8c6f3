"""A linear layer whose weights are 8-bit integers with one scale for each output."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

LARGEST = 127
"""Of an integer's size: -128 is left out, so that the range is symmetric."""


class Int8Linear(nn.Module):
    """
    ``x @ (quantized * scale).T + bias``.

    Weights are rounded to the nearest multiple of their row's scale, symmetric about zero: what
    transformers-neuronx stores as ``s8`` weights. Activations keep their dtype.
    """

    quantized: Tensor
    """``[out, in]`` int8, -127 up to 127."""

    scale: Tensor
    """``[out]``, of the activations' dtype."""

    bias: nn.Parameter | None

    product: Callable[["Int8Linear", Tensor], Tensor]
    """How the forward multiplies; :func:`~.quantized_matmul.quantized_matmul` puts another there."""

    def __init__(self, quantized: Tensor, scale: Tensor, bias: nn.Parameter | None):
        super().__init__()
        self.out_features, self.in_features = quantized.shape
        self.register_buffer("quantized", quantized)
        self.register_buffer("scale", scale)
        self.register_parameter("bias", bias)
        self.product: Callable[[Int8Linear, Tensor], Tensor] = plain_product

    @classmethod
    def of(cls, weight: Tensor, bias: nn.Parameter | None) -> "Int8Linear":
        """
        Quantise *weight*, ``[out, in]``, which is not modified.

        Raises:
            ValueError: A weight is not finite.
        """
        largest = _rows(weight).abs().amax(dim=1) if weight.numel() else weight.new_zeros(weight.shape[0])
        if not bool(largest.isfinite().all()):
            raise ValueError("a weight must be finite to be quantised: got inf or nan")
        # Rounded to its dtype before it divides, so that its own rounding is no error.
        scale = (largest / LARGEST).clamp(min=least_scale(weight.dtype)).to(weight.dtype)
        steps = (_rows(weight) / scale.to(largest.dtype)[:, None]).round_()
        return cls(steps.clamp_(-LARGEST, LARGEST).to(torch.int8).contiguous(), scale, bias)

    @classmethod
    def empty(
        cls, out_features: int, in_features: int, bias: nn.Parameter | None, dtype: torch.dtype
    ) -> "Int8Linear":
        """One of that size, on the default device, whose numbers are still to come."""
        return cls(
            torch.empty(out_features, in_features, dtype=torch.int8),
            torch.empty(out_features, dtype=dtype),
            bias,
        )

    @property
    def storage(self) -> str:
        """What a manifest says of it."""
        return "int8"

    def weight_in(self, dtype: torch.dtype) -> Tensor:
        """``[out, in]``: the weights that the integers stand for."""
        return self.quantized.to(dtype) * self.scale.to(dtype)[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        return self.product(self, x)


def plain_product(layer: Int8Linear, x: Tensor) -> Tensor:
    """In operations that every compiler takes."""
    if x.dtype == torch.float16:
        # A sum of products with whole numbers may leave the range of float16.
        return functional.linear(x, layer.weight_in(x.dtype), layer.bias)
    # Each integer is exact in every other dtype, which a product with its scale is not.
    out = functional.linear(x, layer.quantized.to(x.dtype)) * layer.scale
    return out if layer.bias is None else out + layer.bias


def least_scale(dtype: torch.dtype) -> float:
    """For weights that are all alike: by zero nothing can be divided."""
    # Weights of a usual size have scales below the least normal number of float16.
    return 2.0**-24 if dtype == torch.float16 else torch.finfo(dtype).tiny


def _rows(weight: Tensor) -> Tensor:
    """In at least single precision."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
