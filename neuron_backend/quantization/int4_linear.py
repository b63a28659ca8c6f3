"""A linear layer whose weights are 4-bit integers with a scale and a zero for each group of inputs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .int8_linear import least_scale

GROUP = 32
"""
Inputs that share a scale and a zero, which must divide their number. On the bundled target groups of 64
diverge by 0.0212 nats a token, these by 0.0165, and cost half a bit a weight.
"""

BLOCK = 64
"""Outputs that lie together in memory."""

HALF = BLOCK // 2
LEVELS = 15
MIDDLE = 8


class Int4Linear(nn.Module):
    """
    ``x @ ((packed - 8) * scale + zero).T + bias``.

    Each group of 32 inputs of an output has sixteen levels, from its least weight to its largest.

    A byte holds the integers of two outputs, 32 apart, for one input. Inputs follow each other, then
    blocks of 64 outputs: the order that ATen's kernel packs weights in for AVX-512. The last
    block is filled up with zeros.
    """

    packed: Tensor
    """``[blocks, in, 32]`` uint8; the lower outputs in the lower bits."""

    levels: Tensor
    """``[groups, outputs of all blocks, 2]``: scale, and the weight of integer 8."""

    bias: nn.Parameter | None

    product: Callable[["Int4Linear", Tensor], Tensor]
    """How the forward multiplies; :func:`~.quantized_matmul.quantized_matmul` puts another there."""

    def __init__(self, packed: Tensor, levels: Tensor, out_features: int, bias: nn.Parameter | None):
        super().__init__()
        self.out_features, self.in_features = out_features, packed.shape[1]
        self.register_buffer("packed", packed)
        self.register_buffer("levels", levels)
        self.register_parameter("bias", bias)
        self.product: Callable[[Int4Linear, Tensor], Tensor] = plain_product

    @classmethod
    def of(cls, weight: Tensor, bias: nn.Parameter | None) -> "Int4Linear":
        """
        Quantise *weight*, ``[out, in]``, which is not modified.

        Raises:
            ValueError: A weight is not finite, or the inputs are no whole number of groups.
        """
        if weight.shape[1] == 0 or weight.shape[1] % GROUP:
            raise ValueError(f"the inputs must be a multiple of {GROUP}: got {weight.shape[1]}")
        if not bool(weight.isfinite().all()):
            raise ValueError("a weight must be finite to be quantised: got inf or nan")
        out_features = weight.shape[0]
        wide = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
        grouped = torch.unflatten(nn.functional.pad(wide, (0, 0, 0, -out_features % BLOCK)), 1, (-1, GROUP))
        least, largest = grouped.aminmax(dim=2)
        scale = ((largest - least) / LEVELS).clamp(min=least_scale(weight.dtype)).to(weight.dtype)
        zero = (least + scale * MIDDLE).to(weight.dtype)
        # Both are rounded to their dtype before they are used, so that this is no error.
        steps = ((grouped - zero[..., None]) / scale[..., None].to(wide.dtype)).round_() + MIDDLE
        whole = steps.clamp_(0, LEVELS).to(torch.uint8).flatten(1)
        levels = torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous()
        return cls(pack(whole), levels, out_features, bias)

    @classmethod
    def empty(
        cls, out_features: int, in_features: int, bias: nn.Parameter | None, dtype: torch.dtype
    ) -> "Int4Linear":
        """One of that size, on the default device, whose numbers are still to come."""
        blocks = -(-out_features // BLOCK)
        return cls(
            torch.empty(blocks, in_features, HALF, dtype=torch.uint8),
            torch.empty(in_features // GROUP, blocks * BLOCK, 2, dtype=dtype),
            out_features,
            bias,
        )

    @property
    def storage(self) -> str:
        """What a manifest says of it."""
        return "int4"

    def weight_in(self, dtype: torch.dtype) -> Tensor:
        """``[out, in]``: the weights that the integers stand for."""
        return self.halves(dtype).transpose(1, 2).reshape(-1, self.in_features)[: self.out_features]

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        return self.product(self, x)

    def halves(self, dtype: torch.dtype) -> Tensor:
        """``[half blocks, in, 32]``: the weights, transposed."""
        blocks, inputs, _ = self.packed.shape
        levels = torch.unflatten(self.levels, 1, (blocks, 2, 1, HALF)).permute(1, 2, 0, 3, 4, 5)
        wide = torch.promote_types(dtype, torch.float32)
        integers = torch.stack([self.packed & LEVELS, self.packed >> 4], dim=1).to(wide) - MIDDLE
        groups = torch.unflatten(integers, 2, (-1, GROUP))
        weights = groups * levels[..., 0].to(wide) + levels[..., 1].to(wide)
        return weights.to(dtype).reshape(2 * blocks, inputs, HALF)


def plain_product(layer: Int4Linear, x: Tensor) -> Tensor:
    """In operations that every compiler takes."""
    rows = x.reshape(1, -1, layer.in_features)
    out = torch.matmul(rows, layer.halves(x.dtype)).permute(1, 0, 2).reshape(rows.shape[1], -1)
    return finished(layer, x, out)


def finished(layer: Int4Linear, x: Tensor, out: Tensor) -> Tensor:
    """The product with the outputs of all blocks, ``[rows, outputs]``, as ``[..., out]`` with its bias."""
    kept = out[:, : layer.out_features].reshape(*x.shape[:-1], layer.out_features)
    return kept if layer.bias is None else kept + layer.bias


def pack(whole: Tensor) -> Tensor:
    """Integers ``[outputs of all blocks, in]`` to ``[blocks, in, 32]``."""
    halves = torch.unflatten(whole, 0, (-1, 2, HALF))
    return (halves[:, 0] | halves[:, 1] << 4).transpose(1, 2).contiguous()
