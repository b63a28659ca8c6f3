"""Linear layer with int4 weights and a scale and zero point per group of inputs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .int8_linear import min_scale

GROUP = 32
"""
Inputs that share a scale and a zero point; the number of inputs must be a multiple of it.

On the bundled target model, the divergence is 0.0165 nats/token, with groups of 64 0.0212, for half a bit
more per weight.
"""

BLOCK = 64
"""Outputs that are contiguous in memory."""

HALF = BLOCK // 2
LEVELS = 15
MIDDLE = 8


class Int4Linear(nn.Module):
    """
    ``x @ ((packed - 8) * scale + zero).T + bias``.

    Asymmetric groupwise quantization: each group of 32 inputs of an output has 16 levels, from its smallest
    weight to its largest.

    A byte holds the integers of two outputs, 32 apart, for one input. Inputs are contiguous within blocks of
    64 outputs: the layout of ATen's int4 kernel for AVX-512. The last block is padded with zeros.
    """

    packed: Tensor
    """``[blocks, in, 32]`` uint8, the lower outputs in the lower bits."""

    levels: Tensor
    """``[groups, padded outputs, 2]``: the scale, and the weight that integer 8 stands for."""

    bias: nn.Parameter | None

    matmul: Callable[["Int4Linear", Tensor], Tensor]
    """The implementation of the forward; :func:`~.quantized_matmul.cpu_matmul` replaces it during tracing."""

    def __init__(self, packed: Tensor, levels: Tensor, out_features: int, bias: nn.Parameter | None):
        super().__init__()
        self.out_features, self.in_features = out_features, packed.shape[1]
        self.register_buffer("packed", packed)
        self.register_buffer("levels", levels)
        self.register_parameter("bias", bias)
        self.matmul: Callable[[Int4Linear, Tensor], Tensor] = plain_int4_matmul

    @classmethod
    def of(cls, weight: Tensor, bias: nn.Parameter | None) -> "Int4Linear":
        """
        Quantise *weight*, ``[out, in]``, which is not modified.

        Raises:
            ValueError: A weight is not finite, those of a group differ by more than float32 can hold, or the
                number of inputs is not a multiple of the group size.
        """
        if weight.shape[1] == 0 or weight.shape[1] % GROUP:
            raise ValueError(f"the inputs must be a multiple of {GROUP}: got {weight.shape[1]}")
        if not bool(weight.isfinite().all()):
            raise ValueError("a weight must be finite to be quantised: got inf or nan")
        out_features = weight.shape[0]
        wide = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
        grouped = torch.unflatten(nn.functional.pad(wide, (0, 0, 0, -out_features % BLOCK)), 1, (-1, GROUP))
        least, largest = grouped.aminmax(dim=2)
        scale = ((largest - least) / LEVELS).clamp(min=min_scale(weight.dtype)).to(weight.dtype)
        zero = (least + scale * MIDDLE).to(weight.dtype)
        if not bool(scale.isfinite().all() and zero.isfinite().all()):
            widest = float((largest / 2 - least / 2).max()) * 2
            raise ValueError(
                f"{GROUP} weights in a row must differ by at most {torch.finfo(wide.dtype).max:.3g} to be "
                f"quantised: got {widest:.3g}"
            )
        # Scale and zero are already rounded to their dtype, so that their rounding adds no error.
        steps = ((grouped - zero[..., None]) / scale[..., None].to(wide.dtype)).round_() + MIDDLE
        whole = steps.clamp_(0, LEVELS).to(torch.uint8).flatten(1)
        levels = torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous()
        return cls(pack_int4(whole), levels, out_features, bias)

    @classmethod
    def empty(
        cls, out_features: int, in_features: int, bias: nn.Parameter | None, dtype: torch.dtype
    ) -> "Int4Linear":
        """A layer of that size with uninitialised weights, on the default device."""
        blocks = -(-out_features // BLOCK)
        return cls(
            torch.empty(blocks, in_features, HALF, dtype=torch.uint8),
            torch.empty(in_features // GROUP, blocks * BLOCK, 2, dtype=dtype),
            out_features,
            bias,
        )

    @property
    def storage(self) -> str:
        """Name of the format in a manifest."""
        return "int4"

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The dequantized weights, ``[out, in]``."""
        return self.transposed(dtype).transpose(1, 2).reshape(-1, self.in_features)[: self.out_features]

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        return self.matmul(self, x)

    def transposed(self, dtype: torch.dtype) -> Tensor:
        """The dequantized weights by half blocks, ``[half blocks, in, 32]``."""
        blocks, inputs, _ = self.packed.shape
        levels = torch.unflatten(self.levels, 1, (blocks, 2, 1, HALF)).permute(1, 2, 0, 3, 4, 5)
        wide = torch.promote_types(dtype, torch.float32)
        # Divided rather than shifted: neuronx-cc shifts 32 bits only.
        low, high = (self.packed & LEVELS).to(wide), (self.packed & (LEVELS << 4)).to(wide) / 16
        integers = torch.stack([low, high], dim=1) - MIDDLE
        groups = torch.unflatten(integers, 2, (-1, GROUP))
        weights = groups * levels[..., 0].to(wide) + levels[..., 1].to(wide)
        return weights.to(dtype).reshape(2 * blocks, inputs, HALF)


def plain_int4_matmul(layer: Int4Linear, x: Tensor) -> Tensor:
    """The product in operations that every compiler supports."""
    rows = x.reshape(1, -1, layer.in_features)
    out = torch.matmul(rows, layer.transposed(x.dtype)).permute(1, 0, 2).reshape(rows.shape[1], -1)
    return unpad_and_add_bias(layer, x, out)


def unpad_and_add_bias(layer: Int4Linear, x: Tensor, out: Tensor) -> Tensor:
    """``[rows, padded outputs]`` to ``[..., out]``, with the bias added."""
    kept = out[:, : layer.out_features].reshape(*x.shape[:-1], layer.out_features)
    return kept if layer.bias is None else kept + layer.bias


def pack_int4(whole: Tensor) -> Tensor:
    """Integers ``[padded outputs, in]`` to ``[blocks, in, 32]``."""
    halves = torch.unflatten(whole, 0, (-1, 2, HALF))
    return (halves[:, 0] | halves[:, 1] << 4).transpose(1, 2).contiguous()
