"""
Question: what do the matrix products by all weights of a forward take, by number of rows.

Decoding multiplies one row by every weight, a verification as many rows as it has columns: where reading
the weights dominates, draft tokens cost next to nothing. Linear layers of SmolLM2-135M's shapes with random
weights; decodekit's own kernels (bfloat16 by vectors and in tiles) beside torch's, which takes float weights.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...neuron_backend.large_pages import move_to_large_pages
from ...neuron_backend.quantization.int4_linear import Int4Linear
from ...neuron_backend.quantization.int8_linear import Int8Linear
from ...neuron_backend.targets.cpu.kernel_library import Library
from ...neuron_backend.targets.cpu.kernel_selection import library, tiled_dtypes
from ..measuring.arguments import add_json
from ..measuring.report import Report, finish
from ..measuring.tables import Table

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FORMATS = ("bfloat16", "float16", "bfloat16-int8", "bfloat16-int4")

ROUNDS = 5

Layer: TypeAlias = Int8Linear | Int4Linear | nn.Linear
Product: TypeAlias = Callable[[Any, Tensor], Tensor]

# Outputs and inputs: QKV; attention output; gate and up; down.
LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD = (49_152, 576)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    add("--rows", type=int, nargs="+", default=[1, 2, 3, 5, 9, 16, 64])
    add("--layers", type=int, default=30)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Time every format, and report."""
    results = {name: milliseconds(name, options.rows, options.layers) for name in options.formats}
    rows = [(name, kernels, *times) for name, found in results.items() for kernels, times in found.items()]
    columns = ("format", "kernels", *map(str, options.rows))
    report = Report(
        benchmark="products",
        question="What do the matrix products by all weights of a forward take, by number of rows?",
        settings={"layers": options.layers, "threads": torch.get_num_threads()},
        tables=[Table("Milliseconds by rows, linear layers of SmolLM2-135M's shapes", columns, rows)],
        results=results,
    )
    finish(report, options.json)


def milliseconds(name: str, rows: Sequence[int], count: int) -> dict[str, list[float]]:
    """For each kind of kernel the shortest of a few rounds, by *rows*, in the format *name*."""
    dtype_name, _, weights = name.partition("-")
    dtype = _DTYPES[dtype_name]
    layers = list(linear_layers(dtype, weights, count))
    # As in a decoder; torch's products read them there too.
    move_to_large_pages(tensor for layer in layers for tensor in (*layer.parameters(), *layer.buffers()))
    tiled = (False, True) if dtype in tiled_dtypes() and not weights else (False,)
    kinds: dict[str, Product] = {
        "own, in tiles" if tiles else "own": partial(own_product, library(dtype, tiles)) for tiles in tiled
    }
    # Torch has no fast kernel for quantised weights that every CPU can use.
    compared = kinds if weights else {**kinds, "torch": torchs_product}
    return {
        kind: [shortest(product, layers, each, dtype) for each in rows] for kind, product in compared.items()
    }


def own_product(kernels: Library, layer: Layer, x: Tensor) -> Tensor:
    """By the kernel for the layer's weights."""
    if isinstance(layer, Int4Linear):
        return kernels.int4_gemm(x, layer.packed, layer.levels)
    if isinstance(layer, Int8Linear):
        return kernels.int8_gemm(x, layer.quantized, layer.scale)
    return kernels.float_gemm(x, layer.weight)


def torchs_product(layer: nn.Linear, x: Tensor) -> Tensor:
    """By torch's own choice."""
    return functional.linear(x, layer.weight)


def shortest(
    product: Callable[[Any, Tensor], Tensor], layers: Sequence[Any], rows: int, dtype: torch.dtype
) -> float:
    """Milliseconds of the products of so many *rows* by all *layers*, the minimum of a few rounds."""
    spent = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for layer in layers:
            product(layer, torch.full((rows, inputs_of(layer)), 0.5, dtype=dtype))
        spent.append(1e3 * (time.perf_counter() - start))
    return min(spent[1:])


def inputs_of(layer: Layer) -> int:
    """The inputs of any layer."""
    return layer.weight.shape[1] if isinstance(layer, nn.Linear) else layer.in_features


def linear_layers(dtype: torch.dtype, weights: str, count: int) -> Iterator[Layer]:
    """The linear layers of a model with *count* layers."""
    generator = torch.Generator().manual_seed(0)
    for shape in (*LAYER * count, HEAD):
        weight = torch.randn(shape, generator=generator).mul(0.02).to(dtype)
        if weights == "int8":
            quantized = Int8Linear.of(weight, None)
            quantized.arrange(in_blocks=True)
            yield quantized
        elif weights == "int4":
            yield Int4Linear.of(weight, None)
        else:
            layer = nn.Linear(1, 1, bias=False)
            layer.weight = nn.Parameter(weight, requires_grad=False)
            yield layer
