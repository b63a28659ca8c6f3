"""
Layout of int8 weights for the CPU's kernels.

Outputs lie in blocks of 16. In a block, four inputs of each output are adjacent, then the next four: an
instruction of AVX-512 (``vpdpbusd``) adds the products of 64 bytes to the sums of 16 outputs, and 16 times 64
bytes are a tile of AMX. There weights may be unsigned, so 128 is added to each. The last block and the last
four inputs are padded.
"""

import torch
from torch import Tensor
from torch.nn import functional

LANES = 16
"""Outputs of a block."""

_QUAD = 4
_SIGN = 0x80  # Flipping the highest bit adds 128.


def to_blocks(rows: Tensor) -> Tensor:
    """``[out, in]`` int8 to ``[blocks, in / 4, 16, 4]`` uint8."""
    outputs, inputs = rows.shape
    padded = functional.pad(rows, (0, -inputs % _QUAD, 0, -outputs % LANES))
    # Four inputs as one number: a quarter of the numbers to move.
    quads = torch.unflatten(padded.view(torch.int32), 0, (-1, LANES)).transpose(1, 2).contiguous()
    return torch.unflatten(quads.view(torch.uint8), 2, (LANES, _QUAD)) ^ _SIGN


def to_rows(blocks: Tensor, outputs: int, inputs: int) -> Tensor:
    """The inverse of :func:`to_blocks`."""
    quads = (blocks ^ _SIGN).view(torch.int32).squeeze(3).transpose(1, 2)
    padded = torch.unflatten(quads.reshape(-1).view(torch.int8), 0, (len(blocks) * LANES, -1))
    return padded[:outputs, :inputs].contiguous()
