"""A linear layer whose weights are 4-bit integers with a scale and a zero for each group of inputs."""

import torch
from torch import Tensor, nn

GROUPS = (64, 32)
"""Inputs that share a scale and a zero: the first of these that divides their number."""

BLOCK = 64
"""Outputs that lie together in memory."""

_HALF = BLOCK // 2
_LEVELS = 15
_MIDDLE = 8


class Int4Linear(nn.Module):
    """
    ``x @ ((packed - 8) * scale + zero).T + bias``.

    Each group of inputs of an output has sixteen levels, from its least weight to its largest.

    A byte holds the integers of two outputs, 32 apart, for one input. Inputs follow each other, then
    blocks of 64 outputs: the order that ATen's kernel packs weights in for AVX-512. The last
    block is filled up with zeros. The forward is written in plain operations, which every compiler
    takes; on a processor :mod:`~.quantized_kernels` puts quicker ones in their place.
    """

    packed: Tensor
    """``[blocks, in, 32]`` uint8; the lower outputs in the lower bits."""

    levels: Tensor
    """``[groups, outputs of all blocks, 2]``: scale, and the weight of integer 8."""

    def __init__(self, packed: Tensor, levels: Tensor, out_features: int, bias: nn.Parameter | None):
        super().__init__()
        self.out_features, self.in_features = out_features, packed.shape[1]
        self.group = self.in_features // levels.shape[0]
        self.register_buffer("packed", packed)
        self.register_buffer("levels", levels)
        self.register_parameter("bias", bias)

    @classmethod
    def of(cls, weight: Tensor, bias: nn.Parameter | None, group: int) -> "Int4Linear":
        """
        Quantise *weight*, ``[out, in]``, which is not modified, in groups of *group* inputs.

        Raises:
            ValueError: A weight is not finite.
        """
        if not bool(weight.isfinite().all()):
            raise ValueError("a weight must be finite to be quantised: got inf or nan")
        out_features, in_features = weight.shape
        wide = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
        grouped = nn.functional.pad(wide, (0, 0, 0, -out_features % BLOCK)).unflatten(1, (-1, group))
        least, largest = grouped.aminmax(dim=2)
        scale = ((largest - least) / _LEVELS).clamp(min=torch.finfo(weight.dtype).tiny).to(weight.dtype)
        zero = (least + scale * _MIDDLE).to(weight.dtype)
        # Both are rounded to their dtype before they are used, so that this is no error.
        steps = ((grouped - zero[..., None]) / scale[..., None].to(wide.dtype)).round_() + _MIDDLE
        whole = steps.clamp_(0, _LEVELS).to(torch.uint8).flatten(1)
        levels = torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous()
        return cls(_pack(whole), levels, out_features, bias)

    @classmethod
    def empty(
        cls, out_features: int, in_features: int, bias: nn.Parameter | None, dtype: torch.dtype, group: int
    ) -> "Int4Linear":
        """One of that size, on the default device, whose numbers are still to come."""
        blocks = -(-out_features // BLOCK)
        return cls(
            torch.empty(blocks, in_features, _HALF, dtype=torch.uint8),
            torch.empty(in_features // group, blocks * BLOCK, 2, dtype=dtype),
            out_features,
            bias,
        )

    @property
    def storage(self) -> str:
        """What a manifest says of it."""
        return f"int4/{self.group}"

    def weight_in(self, dtype: torch.dtype) -> Tensor:
        """``[out, in]``: the weights that the integers stand for."""
        return self._halves(dtype).transpose(1, 2).reshape(-1, self.in_features)[: self.out_features]

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        rows = x.reshape(1, -1, self.in_features)
        out = torch.matmul(rows, self._halves(x.dtype)).permute(1, 0, 2)
        out = out.reshape(rows.shape[1], -1)[:, : self.out_features].reshape(
            *x.shape[:-1], self.out_features
        )
        return out if self.bias is None else out + self.bias

    def _halves(self, dtype: torch.dtype) -> Tensor:
        """``[half blocks, in, 32]``: the weights, transposed."""
        blocks, inputs, _ = self.packed.shape
        levels = self.levels.unflatten(1, (blocks, 2, 1, _HALF)).permute(1, 2, 0, 3, 4, 5)
        wide = torch.promote_types(dtype, torch.float32)
        integers = torch.stack([self.packed & _LEVELS, self.packed >> 4], dim=1).to(wide) - _MIDDLE
        groups = integers.unflatten(2, (-1, self.group))
        weights = groups * levels[..., 0].to(wide) + levels[..., 1].to(wide)
        return weights.to(dtype).reshape(2 * blocks, inputs, _HALF)


def group_of(in_features: int) -> int | None:
    """How many inputs share a scale, None if they cannot be divided into groups."""
    return next((group for group in GROUPS if in_features > 0 and in_features % group == 0), None)


def _pack(whole: Tensor) -> Tensor:
    """Integers ``[outputs of all blocks, in]`` to ``[blocks, in, 32]``."""
    halves = whole.unflatten(0, (-1, 2, _HALF))
    return (halves[:, 0] | halves[:, 1] << 4).transpose(1, 2).contiguous()
