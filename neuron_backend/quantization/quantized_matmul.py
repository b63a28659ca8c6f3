"""
Matmuls with quantized weights for CPU and GPU programs, as traced by ``torch.export``.

They replace the portable products of :mod:`~.int8_linear` and :mod:`~.int4_linear` during tracing. Which one
is used depends on the dtype, and without own kernels on the number of rows, both fixed per program. Every
compiled program is compared with the portable products.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..targets.cpu.kernel_library import DTYPES, NO_LIBRARY, Kernels
from . import int4_linear
from .int4_linear import BLOCK, GROUP, HALF, LEVELS, MIDDLE, Int4Linear, unpad_and_add_bias
from .int8_linear import MOST_INPUTS, Int8Linear, plain_int8_matmul

# Rows up to which each kernel is faster than dequantizing the weights once for all rows, measured on one
# thread of an AMD EPYC at the shapes of SmolLM2-135M.
_ATEN_ROWS = 16
_SINGLE_ROWS = 8

# ATen's int8 kernel reads inputs in blocks of this size, without bounds checks.
_ATEN_INPUTS = 16


@contextmanager
def cpu_matmul(model: nn.Module, kernels: Kernels = NO_LIBRARY) -> Iterator[None]:
    """
    Use the fastest CPU matmuls in the quantised layers of *model* while it is traced.

    Args:
        model: The model being traced.

        kernels: Kernel library, used for the dtype that it takes, and int8 for layers in blocks.
    """
    # Determined before tracing.
    int4_fallback = partial(int4_matmul, aten=aten_packing_matches())
    with _matmul_restored(model) as layers:
        for layer in layers:
            if not isinstance(layer, Int8Linear):
                layer.matmul = partial(_int4_with_kernels, kernels, int4_fallback)
            elif layer.in_blocks:
                layer.matmul = partial(_int8_with_kernels, kernels)
            else:
                layer.matmul = int8_matmul
        yield


def arrange_for_kernels(model: nn.Module) -> None:
    """Rearrange the int8 weights of *model* into blocks where own kernels multiply them."""
    for layer in model.modules():
        if isinstance(layer, Int8Linear) and layer.storage == "int8" and layer.scale.dtype in DTYPES:
            # Kernels sum in int32.
            layer.arrange(in_blocks=layer.in_features <= MOST_INPUTS)


@contextmanager
def cuda_matmul(model: nn.Module) -> Iterator[None]:
    """
    Use GPU matmuls in the quantised layers of *model* while it is traced.

    Weights are dequantized where they are used and activations keep their dtype, so the logits are the same
    at every width. For few rows, each product is a sum over its row: Inductor fuses that into one loop that
    reads each stored weight once and writes no dequantized copy. For many rows (prefill), the weights are
    dequantized once for all rows. A float8 matmul (``torch._scaled_mm``) would also round the
    activations to three bits of mantissa.
    """
    with _matmul_restored(model) as layers:
        for layer in layers:
            product = int8_matmul if isinstance(layer, Int8Linear) else int4_matmul
            layer.matmul = partial(product, aten=False)
        yield


@contextmanager
def _matmul_restored(model: nn.Module) -> Iterator[list[Int8Linear | Int4Linear]]:
    """Yield the quantised layers of *model* and restore their portable products afterwards."""
    layers = [layer for layer in model.modules() if isinstance(layer, Int8Linear | Int4Linear)]
    try:
        yield layers
    finally:
        for layer in layers:
            if isinstance(layer, Int8Linear):
                layer.matmul = plain_int8_matmul
            else:
                layer.matmul = int4_linear.plain_int4_matmul


def _int8_with_kernels(kernels: Kernels, layer: Int8Linear, x: Tensor) -> Tensor:
    if not kernels.takes(x.dtype):
        return int8_matmul(layer, x)
    rows = x.reshape(-1, layer.in_features).contiguous()
    out: Tensor = torch.ops.decodekit.int8_gemm(rows, layer.quantized, layer.scale)
    out = out.reshape(*x.shape[:-1], layer.out_features)
    return out if layer.bias is None else out + layer.bias


def _int4_with_kernels(
    kernels: Kernels, fallback: Callable[..., Tensor], layer: Int4Linear, x: Tensor
) -> Tensor:
    if not kernels.takes(x.dtype):
        return fallback(layer, x)
    rows = x.reshape(-1, layer.in_features).contiguous()
    return unpad_and_add_bias(layer, x, torch.ops.decodekit.int4_gemm(rows, layer.packed, layer.levels))


def int8_matmul(layer: Int8Linear, x: Tensor, aten: bool = True) -> Tensor:
    """
    Floating-point product, where the integer one does not apply: other CPUs, float64, float8 weights.

    Args:
        layer: The layer.

        x: ``[..., in]``.

        aten: Whether ATen's kernel may be used.
    """
    rows, integers = x.reshape(-1, layer.in_features), layer.rows()
    aten = aten and integers.dtype == torch.int8 and layer.in_features % _ATEN_INPUTS == 0
    if x.dtype == torch.bfloat16 and rows.shape[0] <= _ATEN_ROWS and aten:
        # In other dtypes ATen's kernel is many times slower than dequantizing first.
        out: Tensor = torch.ops.aten._weight_int8pack_mm(rows, integers, layer.scale)
    elif x.dtype != torch.float64 and rows.shape[0] <= _SINGLE_ROWS:
        # Row by row: compiled to one loop that reads and widens each weight once.
        weight = integers.float()
        sums = [(row.float() * weight).sum(dim=-1) for row in rows.unbind()]
        out = (torch.stack(sums) * layer.scale.float()).to(x.dtype)
    else:
        return plain_int8_matmul(layer, x)
    out = out.reshape(*x.shape[:-1], layer.out_features)
    return out if layer.bias is None else out + layer.bias


def int4_matmul(layer: Int4Linear, x: Tensor, aten: bool) -> Tensor:
    """Product of an :class:`~.int4_linear.Int4Linear`; *aten*: whether ATen's kernel reads its packing."""
    rows = x.reshape(-1, layer.in_features)
    if x.dtype == torch.bfloat16 and rows.shape[0] <= _ATEN_ROWS and aten:
        # The kernel declares its bytes as two inputs per output; they hold two outputs per input.
        packed = layer.packed.view(-1, layer.in_features // 2)
        # The same as aten._weight_int4pack_mm_for_cpu, for which AOTInductor would make the group size a
        # constant that belongs to no named weight.
        group = torch.full((), GROUP)
        out = torch.ops.quantized.int4mm_packed_weight_cpu(rows, packed, group, layer.levels)
    elif x.dtype != torch.float64 and rows.shape[0] <= _SINGLE_ROWS:
        out = torch.stack([_int4_row(layer, row) for row in rows.unbind()]).to(x.dtype)
    else:
        # With row-major weights: twice as fast as the portable product over tiles.
        out = functional.linear(rows, layer.dequantized(x.dtype))
    return unpad_and_add_bias(layer, x, out)


def _int4_row(layer: Int4Linear, row: Tensor) -> Tensor:
    """``[in]`` to ``[padded outputs]``: sums per group, scaled and added."""
    blocks = layer.packed.shape[0]
    inputs = row.float().view(1, -1, GROUP, 1)
    sums = inputs.sum(dim=2)
    levels = torch.unflatten(layer.levels.float(), 1, (blocks, 2, HALF)).permute(2, 1, 0, 3, 4)
    halves = []
    for integers, level in zip((layer.packed & LEVELS, layer.packed >> 4), levels, strict=True):
        groups = torch.unflatten(integers.float() - MIDDLE, 1, (-1, GROUP))
        scaled = (inputs * groups).sum(dim=2) * level[..., 0] + sums * level[..., 1]
        halves.append(scaled.sum(dim=1))
    return torch.stack(halves, dim=1).flatten()


@cache
def aten_packing_matches() -> bool:
    """Whether ATen's kernel on this CPU packs weights in the stored order."""
    integers = torch.arange(BLOCK * 32).view(BLOCK, 32) * 7 % (LEVELS + 1)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers.int(), 1)
    return torch.equal(packed.flatten(), int4_linear.pack_int4(integers.to(torch.uint8)).flatten())
