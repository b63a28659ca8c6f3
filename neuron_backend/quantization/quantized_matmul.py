"""
How a CPU, and a GPU, multiply by weights in few bits, as ``torch.export`` is to see it.

The same weights in other operations than :mod:`~.int8_linear` and :mod:`~.int4_linear` write,
chosen by dtype and rows, both of which a program fixes. Every program is compared with the plain
operations after it is compiled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..targets.cpu.kernel_library import MOST_ROWS_BY_4_BITS, NO_LIBRARY, Library, NoLibrary
from . import int4_linear, int8_linear
from . import int8_activation_split as split
from .int4_linear import BLOCK, GROUP, HALF, LEVELS, MIDDLE, Int4Linear, finished
from .int8_linear import Int8Linear

PACKED = "packed_integers"
"""What an 8-bit layer calls its integers while it is traced, where a program is to be handed them packed."""

# Rows up to which each is quicker than making the weights wide once for all of them, measured on one
# thread of an AMD EPYC at the shapes of SmolLM2-135M.
_ATEN_ROWS = 16
_SINGLE_ROWS = 8

# ATen's int8 kernel reads inputs in steps of so many, and without a check beyond the end of others.
_ATEN_INPUTS = 16


@contextmanager
def quantized_matmul(model: nn.Module, kernels: Library | NoLibrary = NO_LIBRARY) -> Iterator[None]:
    """
    Let the quantised layers of *model* multiply as a CPU is quickest, for as long as it is traced.

    Args:
        model: Whose layers.

        kernels: What multiplies the inputs that it takes.
    """
    # Found out before anything is traced.
    by_four = partial(int4_product, aten=aten_packs_alike())
    with _products_restored(model) as layers:
        for layer in layers:
            if not isinstance(layer, Int8Linear):
                layer.product = partial(_few_int4, kernels, by_four)
            elif layer.storage != "int8":
                layer.product = int8_product
            elif split.takes(layer.scale.dtype, layer.in_features):
                # Of the shape that the kernel is told; a program is handed what is packed.
                layer.register_buffer(PACKED, layer.quantized.T)
                layer.product = partial(_few_int8, kernels, _packed_product)
            else:
                layer.product = partial(_few_int8, kernels, int8_product)
        yield


@contextmanager
def cuda_products(model: nn.Module) -> Iterator[None]:
    """
    Let the quantised layers of *model* multiply as a GPU is to, for as long as it is traced.

    The weights are widened where they are multiplied, and the activations keep their dtype, so a
    decoder scores alike at every width. Of a few rows, each product is a sum over its own row: Inductor
    makes that a loop which reads each stored weight once, and nothing wide is written. Of many rows, as
    of a prompt, the weights are widened once for all of them. A product in float8 alone
    (``torch._scaled_mm``) would round the activations to three bits of mantissa as well.
    """
    with _products_restored(model) as layers:
        for layer in layers:
            product = int8_product if isinstance(layer, Int8Linear) else int4_product
            layer.product = partial(product, aten=False)
        yield


@contextmanager
def _products_restored(model: nn.Module) -> Iterator[list[Int8Linear | Int4Linear]]:
    """The quantised layers of *model*, which multiply in their own way again afterwards."""
    layers = [layer for layer in model.modules() if isinstance(layer, Int8Linear | Int4Linear)]
    try:
        yield layers
    finally:
        for layer in layers:
            if isinstance(layer, Int8Linear):
                layer._buffers.pop(PACKED, None)
                layer.product = int8_linear.plain_product
            else:
                layer.product = int4_linear.plain_product


def _few_int8(
    kernels: Library | NoLibrary, otherwise: Callable[..., Tensor], layer: Int8Linear, x: Tensor
) -> Tensor:
    rows = x.reshape(-1, layer.in_features).contiguous()
    if not kernels.takes(rows):
        return otherwise(layer, x)
    out: Tensor = torch.ops.decodekit.int8_gemm(rows, layer.quantized, layer.scale)
    out = out.reshape(*x.shape[:-1], layer.out_features)
    return out if layer.bias is None else out + layer.bias


def _few_int4(
    kernels: Library | NoLibrary, otherwise: Callable[..., Tensor], layer: Int4Linear, x: Tensor
) -> Tensor:
    rows = x.reshape(-1, layer.in_features).contiguous()
    if not kernels.takes(rows, MOST_ROWS_BY_4_BITS):
        return otherwise(layer, x)
    return finished(layer, x, torch.ops.decodekit.int4_gemm(rows, layer.packed, layer.levels))


def _packed_product(layer: Int8Linear, x: Tensor) -> Tensor:
    return split_product(layer, x, layer.get_buffer(PACKED))


def split_product(layer: Int8Linear, x: Tensor, packed: Tensor) -> Tensor:
    """The product of an :class:`~.int8_linear.Int8Linear` in integers, as :mod:`~.int8_activation_split` has it."""
    rows = x.reshape(-1, layer.in_features)
    out = split.product(rows, packed, layer.scale).to(x.dtype).reshape(*x.shape[:-1], layer.out_features)
    return out if layer.bias is None else out + layer.bias


def int8_product(layer: Int8Linear, x: Tensor, aten: bool = True) -> Tensor:
    """
    The same where integers cannot: of other processors, dtypes with too many bits, and float8.

    Args:
        layer: Whose weights.

        x: ``[..., in]``.

        aten: Whether ATen's kernel may be used.
    """
    rows = x.reshape(-1, layer.in_features)
    aten = aten and layer.quantized.dtype == torch.int8 and layer.in_features % _ATEN_INPUTS == 0
    if x.dtype == torch.bfloat16 and rows.shape[0] <= _ATEN_ROWS and aten:
        # In other dtypes ATen's kernel is many times slower than a product with wide weights.
        out: Tensor = torch.ops.aten._weight_int8pack_mm(rows, layer.quantized, layer.scale)
    elif x.dtype != torch.float64 and rows.shape[0] <= _SINGLE_ROWS:
        # Row by row, which the compiler makes one loop that reads and widens each weight once.
        weight = layer.quantized.float()
        sums = [(row.float() * weight).sum(dim=-1) for row in rows.unbind()]
        out = (torch.stack(sums) * layer.scale.float()).to(x.dtype)
    else:
        return int8_linear.plain_product(layer, x)
    out = out.reshape(*x.shape[:-1], layer.out_features)
    return out if layer.bias is None else out + layer.bias


def int4_product(layer: Int4Linear, x: Tensor, aten: bool) -> Tensor:
    """The product of an :class:`~.int4_linear.Int4Linear`; *aten* says whether its kernel can read them."""
    rows = x.reshape(-1, layer.in_features)
    if x.dtype == torch.bfloat16 and rows.shape[0] <= _ATEN_ROWS and aten:
        # The kernel calls bytes of two outputs for each input two inputs for each output.
        packed = layer.packed.view(-1, layer.in_features // 2)
        # The same as aten._weight_int4pack_mm_for_cpu, for which AOTInductor would make the group's
        # size a constant that no weight's name leads to.
        group = torch.full((), GROUP)
        out = torch.ops.quantized.int4mm_packed_weight_cpu(rows, packed, group, layer.levels)
    elif x.dtype != torch.float64 and rows.shape[0] <= _SINGLE_ROWS:
        out = torch.stack([_int4_row(layer, row) for row in rows.unbind()]).to(x.dtype)
    else:
        # Laid out as rows, for half of the time that the plain form takes, tile by tile.
        out = functional.linear(rows, layer.weight_in(x.dtype))
    return finished(layer, x, out)


def _int4_row(layer: Int4Linear, row: Tensor) -> Tensor:
    """``[in]`` to ``[outputs of all blocks]``: sums of each group, which are then scaled and added up."""
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
def aten_packs_alike() -> bool:
    """Whether this processor's kernel packs weights in the order that they are stored in."""
    integers = torch.arange(BLOCK * 32).view(BLOCK, 32) * 7 % (LEVELS + 1)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers.int(), 1)
    return torch.equal(packed.flatten(), int4_linear.pack(integers.to(torch.uint8)).flatten())
