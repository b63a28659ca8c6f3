"""Linear layer with int8 weights and one scale per output."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from .int8_blocks import to_blocks, to_rows

INT8_MAX = 127
"""Largest magnitude of a weight: -128 is not used, which keeps the range symmetric."""


MOST_INPUTS = 2**31 // INT8_MAX**2
"""Inputs beyond which sums of int8 products could overflow 32 bits."""


class Int8Linear(nn.Module):
    """
    ``x @ (quantized * scale).T + bias``.

    Symmetric per-output quantization: weights are rounded to the nearest multiple of their row's scale, as
    transformers-neuronx's ``s8`` weights. Activations keep their dtype.
    """

    quantized: Tensor
    """``[out, in]`` int8 in [-127, 127], or the same in the layout of :mod:`~.int8_blocks`."""

    scale: Tensor
    """``[out]`` in the activations' dtype."""

    bias: nn.Parameter | None

    matmul: Callable[["Int8Linear", Tensor], Tensor]
    """The implementation of the forward; :func:`~.quantized_matmul.cpu_matmul` replaces it during tracing."""

    def __init__(
        self, quantized: Tensor, scale: Tensor, bias: nn.Parameter | None, in_features: int | None = None
    ):
        super().__init__()
        self.out_features = len(scale)
        # Blocks are padded.
        self.in_features = quantized.shape[1] if in_features is None else in_features
        self.register_buffer("quantized", quantized)
        self.register_buffer("scale", scale)
        self.register_parameter("bias", bias)
        self.matmul: Callable[[Int8Linear, Tensor], Tensor] = plain_int8_matmul

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
        # Rounded to its dtype before the division, so that its rounding adds no error.
        scale = (largest / INT8_MAX).clamp(min=min_scale(weight.dtype)).to(weight.dtype)
        steps = (_rows(weight) / scale.to(largest.dtype)[:, None]).round_()
        return cls(steps.clamp_(-INT8_MAX, INT8_MAX).to(torch.int8).contiguous(), scale, bias)

    @classmethod
    def empty(
        cls, out_features: int, in_features: int, bias: nn.Parameter | None, dtype: torch.dtype
    ) -> "Int8Linear":
        """A layer of that size with uninitialised weights, on the default device."""
        return cls(
            torch.empty(out_features, in_features, dtype=torch.int8),
            torch.empty(out_features, dtype=dtype),
            bias,
        )

    @property
    def storage(self) -> str:
        """Name of the format in a manifest."""
        return "int8"

    @property
    def in_blocks(self) -> bool:
        """Whether the weights have the layout of :mod:`~.int8_blocks`."""
        return self.quantized.dim() > 2

    def arrange(self, in_blocks: bool) -> None:
        """Rearrange the weights, unless they are: in blocks or in rows."""
        if in_blocks != self.in_blocks:
            self.quantized = to_blocks(self.quantized) if in_blocks else self.rows()

    def rows(self) -> Tensor:
        """The integers, ``[out, in]``."""
        if not self.in_blocks:
            return self.quantized
        return to_rows(self.quantized, self.out_features, self.in_features)

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The dequantized weights, ``[out, in]``."""
        return self.rows().to(dtype) * self.scale.to(dtype)[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        return self.matmul(self, x)


def plain_int8_matmul(layer: Int8Linear, x: Tensor) -> Tensor:
    """The product in operations that every compiler supports."""
    if x.dtype == torch.float16:
        # Sums of products with unscaled integers may overflow float16.
        return functional.linear(x, layer.dequantized(x.dtype), layer.bias)
    # Scaled afterwards: the integers are exact in every other dtype, scaled weights are not.
    out = functional.linear(x, layer.rows().to(x.dtype)) * layer.scale
    return out if layer.bias is None else out + layer.bias


def min_scale(dtype: torch.dtype) -> float:
    """Smallest scale of a row or group, above 0 so that dividing by it is defined."""
    # Below the smallest normal float16, where scales of ordinary weights lie.
    return 2.0**-24 if dtype == torch.float16 else torch.finfo(dtype).tiny


def _rows(weight: Tensor) -> Tensor:
    """*weight* in at least float32."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
