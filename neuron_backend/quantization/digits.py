"""
Products with 8-bit weights by integers alone: inputs become a few digits of 8 bits each.

A number is ``d0 + d1 / 254 + d2 / 254**2 + ...`` times its row's scale, with digits from -127 up to 127. Each
digit is a row of its own in one product of integers, for which processors have instructions, and
which is exact: a row's result does not depend on the rows beside it, so a verification
finds what decoding token by token finds, to the last bit. Reading the weights is what takes time, so
a few rows more cost next to nothing.
"""

from functools import cache

import torch
from torch import Tensor

from ..artifacts.machine import instruction_sets

LARGEST = 127
BASE = 254
"""What rounding leaves, at most a half, times this is a digit again."""

DIGITS = {torch.bfloat16: 2, torch.float16: 2, torch.float32: 3}
"""How many carry each dtype: 15 bits below the largest of a row where numbers have 8 or 11, 23 of 24."""

# VNNI's instructions take inputs from 0 to 255. What a processor has no instruction for, oneDNN leaves to
# its reference kernel, which is a thousand times slower.
_SETS = frozenset(instruction_sets())
_SIGNED = bool(_SETS & {"amx_int8", "asimddp"})
_MULTIPLIES = _SIGNED or bool(_SETS & {"avx512_vnni", "avx_vnni"})
_OFFSET, _STORED = (0, torch.int8) if _SIGNED else (128, torch.uint8)

# Products of more inputs could leave the range of the 32-bit sums.
_INPUTS = 2**31 // LARGEST**2


def takes(dtype: torch.dtype, inputs: int) -> bool:
    """Whether :func:`product` multiplies *inputs* of *dtype* here."""
    return dtype in DIGITS and inputs <= _INPUTS and _are_exact()


def product(rows: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """
    ``rows @ (packed * scale)``.

    Args:
        rows: ``[rows, in]`` of a dtype in :data:`DIGITS`.

        packed: What :func:`pack` made of ``[out, in]``; for ``torch.export`` any int8 tensor ``[in, out]``.

        scale: Of each output, ``[out]``.

    Returns:
        ``[rows, out]`` float32.
    """
    wide = rows.float()
    # What has no largest number but zero is divided by the smallest.
    largest = wide.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    rest, digits = wide / largest * LARGEST, []
    for _ in range(DIGITS[rows.dtype]):
        digit = rest.round()
        digits.append(stored(digit))
        rest = (rest - digit) * BASE
    # Computed, though they never change: a number would become a constant of the program that no
    # weight's name leads to.
    zero = (largest[0] < 0).int()
    one = (1 - zero).float()
    parts = sums(torch.cat(digits), packed, one, zero).chunk(len(digits))
    # From the smallest on.
    total: Tensor = parts[-1]
    for part in reversed(parts[:-1]):
        total = part + total * (1 / BASE)
    return total * (largest / LARGEST) * scale.float()


def stored(digit: Tensor) -> Tensor:
    """Whole numbers from -127 to 127 in the 8 bits that this processor multiplies."""
    return (digit + _OFFSET).to(_STORED)


def sums(digits: Tensor, packed: Tensor, one: Tensor, zero: Tensor) -> Tensor:
    """
    ``digits @ packed``, exactly.

    Args:
        digits: ``[rows, in]``, as :func:`stored` gives them.

        packed: As for :func:`product`.

        one: ``[1]`` float32, and *zero* ``[1]`` int32: scales and offsets that are none.

        zero: See *one*.

    Returns:
        ``[rows, out]`` float32.
    """
    found: Tensor = torch.ops.onednn.qlinear_pointwise.tensor(
        digits, one, zero + _OFFSET, packed, one, zero, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return found


def pack(quantized: Tensor) -> Tensor:
    """``[out, in]`` int8 in the order that oneDNN reads weights in; opaque, and a copy."""
    packed: Tensor = torch.ops.onednn.qlinear_prepack(quantized, None)
    return packed


@cache
def _are_exact() -> bool:
    """
    Whether this processor adds up products of 8-bit integers without a bound in between.

    Those without such instructions add two of them in 16 bits, and what is larger is cut off.
    """
    if not _MULTIPLIES or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    one, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    digits = torch.full((3, 64), float(LARGEST))
    digits[1] = -LARGEST
    digits[2, ::2] = -LARGEST
    weights = torch.full((16, 64), LARGEST, dtype=torch.int8)
    weights[1::2, ::2] = -LARGEST
    found = sums(stored(digits), pack(weights), one, zero)
    return torch.equal(digits @ weights.float().T, found)
