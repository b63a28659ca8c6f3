"""Random products of a few rows, by float, int8 and int4 weights."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from decodekit.neuron_backend.quantization.int4_linear import BLOCK, GROUP, Int4Linear
from decodekit.neuron_backend.quantization.int8_blocks import to_blocks

from ...int8_split import split_product
from .case import ROUNDING, Case
from .driver import Call, Operation

TINY = torch.finfo(torch.float32).tiny

_IN_FLOATS = (Operation.FLOATS, Operation.COLUMNS)

# Half of the last digit of a split input, for the row's largest input.
RESOLUTION = {
    torch.float32: 0.5 / 127 / 254**2,
    torch.bfloat16: 0.5 / 127 / 254,
    torch.float16: 0.5 / 127 / 254,
}


def float_product(dice: random.Random, dtype: torch.dtype, rows: Sequence[int]) -> Case:
    """Weights of the inputs' dtype."""
    outputs, inputs = sizes(dice)
    x, weight = activations(dice, dice.choice(rows), inputs, dtype), normal(dice, outputs, inputs).to(dtype)
    return product(dice, Operation.FLOATS, [x, weight], weight.double(), outputs)


def column_product(dice: random.Random, dtype: torch.dtype, rows: Sequence[int]) -> Case:
    """Weights ``[in, out]``."""
    outputs, inputs = sizes(dice)
    x, weight = activations(dice, dice.choice(rows), inputs, dtype), normal(dice, inputs, outputs).to(dtype)
    return product(dice, Operation.COLUMNS, [x, weight], weight.double().T, outputs)


def expert_product(dice: random.Random, dtype: torch.dtype, rows: Sequence[int]) -> Case:
    """Weights of an expert for each row, in either layout."""
    outputs, inputs = sizes(dice)
    operation = dice.choice([Operation.EXPERTS, Operation.EXPERT_COLUMNS])
    x, count = activations(dice, dice.choice(rows), inputs, dtype), dice.randint(1, 5)
    weights = normal(dice, count, outputs, inputs).to(dtype)
    numbers = integers(dice, len(x), low=0, high=count)
    stored = weights if operation == Operation.EXPERTS else weights.mT.contiguous()
    wide, own = x.double(), weights.double()[numbers]
    expected = (own @ wide[:, :, None]).squeeze(2)
    magnitude = (own.abs() @ wide.nan_to_num(posinf=0, neginf=0).abs()[:, :, None]).squeeze(2)
    tiny = torch.finfo(dtype)
    bound = (ROUNDING[dtype] + 1e-5) * magnitude + TINY * (own.abs().sum(dim=2) + 1) + tiny.tiny * tiny.eps
    row = dice.randrange(len(x))
    here = slice(row, row + 1)
    alone = Call(operation, [x[here].contiguous(), numbers[here].contiguous(), stored], (1, outputs))
    call = Call(operation, [x, numbers, stored], tuple(expected.shape))
    return Case(call, expected, bound, None, alone, (row,))


def int8_product(dice: random.Random, dtype: torch.dtype, rows: Sequence[int]) -> Case:
    """Any bytes, and scales of both signs: results are to the bit those of the definition."""
    outputs, inputs = sizes(dice)
    x = activations(dice, dice.choice(rows), inputs, dtype)
    quantized = integers(dice, outputs, inputs, low=-128, high=128).to(torch.int8)
    scale = (normal(dice, outputs) / 50).to(dtype)
    weight = quantized.double() * scale.double()[:, None]
    same = split_product(x, quantized, scale)
    return product(dice, Operation.INT8, [x, to_blocks(quantized), scale], weight, outputs, same)


def int4_product(dice: random.Random, dtype: torch.dtype, rows: Sequence[int]) -> Case:
    """Weights that are quantised, whose outputs are padded to blocks; or any bytes and levels."""
    outputs, groups = dice.randint(1, 200), dice.randint(1, 12)
    inputs = groups * GROUP
    x = activations(dice, dice.choice(rows), inputs, dtype)
    layer = Int4Linear.of(normal(dice, outputs, inputs).to(dtype), None)
    if dice.random() < 0.5:
        layer.packed = integers(dice, *layer.packed.shape, low=0, high=256).to(torch.uint8)
        layer.levels = (normal(dice, *layer.levels.shape) / 4).to(dtype)
    # All outputs of all blocks.
    layer.out_features = padded = layer.packed.shape[0] * BLOCK
    weight = layer.dequantized(torch.float64)
    steps, middles = layer.levels.double().abs().repeat_interleave(GROUP, 0).unbind(2)
    added = 16 * steps + middles
    return product(dice, Operation.INT4, [x, layer.packed, layer.levels], weight, padded, added=added.T)


def product(
    dice: random.Random,
    operation: Operation,
    tensors: list[Tensor],
    weight: Tensor,
    outputs: int,
    same: Tensor | None = None,
    added: Tensor | None = None,
) -> Case:
    """
    The case.

    Args:
        dice: Chooses the row that is also multiplied alone.

        operation: The kernel.

        tensors: Its operands, the inputs first.

        weight: What the others stand for, ``[outputs, in]`` float64.

        outputs: Number of outputs.

        same: The result to the bit.

        added: Magnitudes of which a weight is the difference, where it is one.
    """
    x = tensors[0]
    wide, finite = x.double(), x.isfinite().all(dim=1, keepdim=True)
    expected = wide @ weight.T
    if operation not in _IN_FLOATS:
        expected = torch.where(finite, expected, torch.nan)
    known = wide.where(finite, 0).abs()
    rounding = ROUNDING[x.dtype]
    bound = rounding * (known @ weight.abs().T) + 1e-5 * (
        known @ (weight.abs() if added is None else added).T
    )
    # Split inputs lose what is small beside the row's largest; and there may be no subnormal numbers.
    lost = RESOLUTION[x.dtype] * known.amax(dim=1, keepdim=True) if operation not in _IN_FLOATS else 0
    own = torch.finfo(x.dtype)
    bound += (lost + TINY) * (weight.abs().sum(dim=1) + 1) + own.tiny * own.eps
    row = dice.randrange(len(x))
    alone = Call(operation, [x[row : row + 1].contiguous(), *tensors[1:]], (1, outputs))
    return Case(
        Call(operation, tensors, (len(x), outputs)), expected, bound, same, alone, (slice(row, row + 1),)
    )


def sizes(dice: random.Random) -> tuple[int, int]:
    """Outputs and inputs: around the sizes of blocks, any, and enough for several threads."""
    action = dice.random()
    if action < 0.3:
        return dice.randint(1, 40), dice.choice([16, 32, 48, 64, 128, 192]) + dice.randint(-2, 2)
    if action < 0.6:
        return dice.randint(1, 150), dice.randint(1, 200)
    if action < 0.9:
        # Whole tiles.
        return dice.randint(1, 150), 64 * dice.randint(1, 8)
    return dice.randint(100, 400), dice.randint(200, 700)


def activations(dice: random.Random, rows: int, inputs: int, dtype: torch.dtype) -> Tensor:
    """``[rows, inputs]``, rows of very different magnitude, and some with numbers that are special."""
    x = normal(dice, rows, inputs) * torch.logspace(-1, 1, rows)[:, None]
    for row in range(rows):
        action, at = dice.random(), dice.randrange(inputs)
        if action < 0.03:
            x[row, at] = dice.choice([torch.nan, torch.inf, -torch.inf])
        elif action < 0.06:
            x[row] = 0.0
        elif action < 0.09:
            x[row] *= TINY
        elif action < 0.12:
            x[row, at] *= 100
        elif action < 0.15 and dtype != torch.float16:
            x[row] *= 1e30
    return x.to(dtype)


def normal(dice: random.Random, *shape: int) -> Tensor:
    """Normal numbers in float32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(dice.getrandbits(32)))


def integers(dice: random.Random, *shape: int, low: int, high: int) -> Tensor:
    """Whole numbers from *low*, below *high*."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(dice.getrandbits(32)))
