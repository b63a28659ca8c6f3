"""
Integer matmul with int8 weights: activations are split into int8 digit planes.

An activation is ``(d0 + d1 / 254 + d2 / 254**2 + ...) / 127`` times its row's largest magnitude, with int8
digits in [-127, 127]. Each plane of digits is one more row of a single integer matmul, for which CPUs have
instructions and whose int32 accumulation is exact. A row's result is therefore independent of the other
rows: verifying several tokens at once and decoding one by one agree to the last bit. The matmul is bound by
reading the weights, so the additional rows cost next to nothing.
"""

from functools import cache

import torch
from torch import Tensor

from ..artifacts.machine import instruction_sets

INT8_MAX = 127
BASE = 254
"""Ratio of successive planes: a rounding remainder of at most 1/2, times this, is a digit again."""

NUM_PLANES = {torch.bfloat16: 2, torch.float16: 2, torch.float32: 3}
"""
Int8 planes for each activation dtype.

Two hold 15 bits below a row's largest magnitude, for dtypes of 8 or 11 significant bits; three hold 23 of
float32's 24.
"""

# VNNI instructions take unsigned activations. Without an instruction for its inputs, oneDNN falls back to
# its reference kernel, which is a thousand times slower.
_SETS = frozenset(instruction_sets())
_SIGNED = bool(_SETS & {"amx_int8", "asimddp"})
_MULTIPLIES = _SIGNED or bool(_SETS & {"avx512_vnni", "avx_vnni"})
_OFFSET, _STORED = (0, torch.int8) if _SIGNED else (128, torch.uint8)

MOST_INPUTS = 2**31 // INT8_MAX**2
"""More could overflow int32 accumulators."""


def can_split(dtype: torch.dtype, inputs: int) -> bool:
    """Whether :func:`split_matmul` supports *inputs* activations of *dtype* on this CPU."""
    return dtype in NUM_PLANES and inputs <= MOST_INPUTS and _are_exact()


def split_matmul(rows: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """
    ``rows @ (packed * scale)``.

    Args:
        rows: Activations, ``[rows, in]``, of a dtype in :data:`NUM_PLANES`.

        packed: :func:`pack_weights` of ``[out, in]``; for ``torch.export`` any int8 tensor ``[in, out]``.

        scale: Scale of each output, ``[out]``.

    Returns:
        ``[rows, out]`` float32.
    """
    wide = rows.float()
    # Not 0, for rows of zeros.
    largest = wide.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    rest, planes = wide / largest * INT8_MAX, []
    for _ in range(NUM_PLANES[rows.dtype]):
        plane = rest.round()
        planes.append(stored(plane))
        rest = (rest - plane) * BASE
    # Computed, though constant: literals would become constants of the program that belong to no named
    # weight.
    zero = (largest[0] < 0).int()
    one = (1 - zero).float()
    parts = exact_matmul(torch.cat(planes), packed, one, zero).chunk(len(planes))
    # Smallest first, for accuracy.
    total: Tensor = parts[-1]
    for part in reversed(parts[:-1]):
        total = part + total * (1 / BASE)
    return total * (largest / INT8_MAX) * scale.float()


def stored(plane: Tensor) -> Tensor:
    """Whole numbers from -127 to 127 in the 8-bit format that this CPU multiplies."""
    return (plane + _OFFSET).to(_STORED)


def exact_matmul(planes: Tensor, packed: Tensor, one: Tensor, zero: Tensor) -> Tensor:
    """
    ``planes @ packed``, accumulated exactly in int32.

    Args:
        planes: ``[rows, in]``, as :func:`stored` returns them.

        packed: As for :func:`split_matmul`.

        one: 1 as ``[1]`` float32: the neutral scale that the operation requires.

        zero: 0 as ``[1]`` int32: the neutral zero point.

    Returns:
        ``[rows, out]`` float32.
    """
    found: Tensor = torch.ops.onednn.qlinear_pointwise.tensor(
        planes, one, zero + _OFFSET, packed, one, zero, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return found


def pack_weights(quantized: Tensor) -> Tensor:
    """A copy of ``[out, in]`` int8 weights in oneDNN's opaque memory layout."""
    packed: Tensor = torch.ops.onednn.qlinear_prepack(quantized, None)
    return packed


@cache
def _are_exact() -> bool:
    """
    Whether this CPU accumulates int8 products without intermediate saturation.

    CPUs without such instructions add pairs of products in 16 bits, which saturates.
    """
    if not _MULTIPLIES or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    one, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    planes = torch.full((3, 64), float(INT8_MAX))
    planes[1] = -INT8_MAX
    planes[2, ::2] = -INT8_MAX
    weights = torch.full((16, 64), INT8_MAX, dtype=torch.int8)
    weights[1::2, ::2] = -INT8_MAX
    found = exact_matmul(stored(planes), pack_weights(weights), one, zero)
    return torch.equal(planes @ weights.float().T, found)
