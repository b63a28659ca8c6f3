"""
Question: what do the matrix products by all weights of a forward take, by number of rows.

Decoding multiplies one row by every weight, a verification as many rows as it has columns: where reading
the weights dominates, draft tokens cost next to nothing. Linear layers of SmolLM2-135M's shapes with random
weights; decodekit's own kernels (bfloat16 by vectors and in tiles) beside torch's.
"""

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from ...neuron_backend.quantization.int4_linear import Int4Linear
from ...neuron_backend.quantization.int8_linear import Int8Linear
from ...neuron_backend.targets.cpu.kernel_library import Library
from ...neuron_backend.targets.cpu.kernel_selection import measured, tiled_dtypes
from ..measuring.arguments import add_json
from ..measuring.report import Report, finish
from ..measuring.tables import Table

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FORMATS = ("bfloat16", "float16", "bfloat16-int8", "bfloat16-int4")

# Outputs and inputs: QKV; attention output; gate and up; down.
LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD = (49_152, 576)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    add("--rows", type=int, nargs="+", default=[1, 2, 3, 5, 9, 16])
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
    own, torchs = {}, []
    kinds = ["own", *(["own, in tiles"] if dtype in tiled_dtypes() and not weights else [])]
    for kind in kinds:
        library = Library.compiled(dtype, rows, tiled=kind != "own")
        times = [measured(library, layers, each) for each in rows]
        own[kind] = [1e3 * mine for mine, _ in times]
        torchs = [1e3 * theirs for _, theirs in times]
    return {**own, "torch": torchs}


def linear_layers(
    dtype: torch.dtype, weights: str, count: int
) -> Iterator[Int8Linear | Int4Linear | nn.Linear]:
    """The linear layers of a model with *count* layers."""
    generator = torch.Generator().manual_seed(0)
    for shape in (*LAYER * count, HEAD):
        weight = torch.randn(shape, generator=generator).mul(0.02).to(dtype)
        if weights == "int8":
            yield Int8Linear.of(weight, None)
        elif weights == "int4":
            yield Int4Linear.of(weight, None)
        else:
            layer = nn.Linear(1, 1, bias=False)
            layer.weight = nn.Parameter(weight, requires_grad=False)
            yield layer
