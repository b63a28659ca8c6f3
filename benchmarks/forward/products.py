"""
Question: what do products by all weights of a forward take, by how many rows they have.

Decoding multiplies one row by every weight, a verification as many as it has columns: where reading the
weights is what takes time, guesses cost next to nothing. Linear layers of SmolLM2-135M's shapes with random
weights; code of decodekit's own (neuron_backend/few_rows), of bfloat16 by vectors and in tiles, and the
kernels that torch has.

    python benchmarks/products.py [--formats bfloat16 float16 bfloat16-int8 bfloat16-int4]
                                  [--rows 1 2 3 5 9 16] [--layers 30] [--json FILE]
"""

import argparse
import pathlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from decodekit.bench.report import Report, Table, finish
from decodekit.neuron_backend.few_rows.library import Library
from decodekit.neuron_backend.quantization.int4_linear import Int4Linear
from decodekit.neuron_backend.quantization.int8_linear import Int8Linear
from decodekit.neuron_backend.targets.quickest_products import measured, tiled_dtypes

FORMATS = ("bfloat16", "float16", "bfloat16-int8", "bfloat16-int4")

# Outputs and inputs: queries, keys and values; what attention gives; gate and up; down.
LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD = (49_152, 576)


def linear_layers(dtype: torch.dtype, weights: str, count: int) -> Iterator[nn.Module]:
    """All of a model with *count* layers."""
    generator = torch.Generator().manual_seed(0)
    for shape in (*LAYER * count, HEAD):
        weight = torch.randn(shape, generator=generator).mul(0.02).to(dtype)
        if weights:
            yield {"int8": Int8Linear, "int4": Int4Linear}[weights].of(weight, None)
        else:
            layer = nn.Linear(1, 1, bias=False)
            layer.weight = nn.Parameter(weight, requires_grad=False)
            yield layer


def milliseconds(name: str, rows: Sequence[int], count: int) -> dict[str, list[float]]:
    """Of a format, who multiplies to the least of a few rounds, by rows."""
    dtype_name, _, weights = name.partition("-")
    dtype = getattr(torch, dtype_name)
    layers = list(linear_layers(dtype, weights, count))
    own, torchs = {}, []
    kinds = ["own", *(["own, in tiles"] if dtype in tiled_dtypes() and not weights else [])]
    for kind in kinds:
        library = Library.compiled(dtype, rows, tiled=kind != "own")
        times = [measured(library, layers, each) for each in rows]
        own[kind] = [1e3 * mine for mine, _ in times]
        torchs = [1e3 * theirs for _, theirs in times]
    return {**own, "torch": torchs}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 5, 9, 16])
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()

    results = {name: milliseconds(name, args.rows, args.layers) for name in args.formats}
    finish(
        Report(
            benchmark="products",
            question="What do products by all weights of a forward take, by how many rows they have?",
            settings={"layers": args.layers, "threads": torch.get_num_threads()},
            tables=[
                Table(
                    "Milliseconds by rows, linear layers of SmolLM2-135M's shapes",
                    ("format", "kernels", *map(str, args.rows)),
                    [(name, who, *times) for name, found in results.items() for who, times in found.items()],
                )
            ],
            results=results,
        ),
        args.json,
    )


if __name__ == "__main__":
    main()
