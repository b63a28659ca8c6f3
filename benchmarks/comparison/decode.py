"""
Question: how long do a token and a prompt take, next to transformers and llama.cpp with the same weights.

Every peer is a process that holds one model of random weights in one format. They take turns round after
round, ordered by bits of a weight, forwards and backwards, so that other load on the machine affects all of
them. Before that each scores the same tokens and has to agree with the stock model in float32, so that only
equal computations are compared.
"""

import argparse
from pathlib import Path

from ..measuring.arguments import add_common, progress
from ..measuring.report import finish
from ..models.shapes import add_scaling, shape_named
from .measurement import compare
from .settings import Comparison, entries
from .tables import report

_DECODEKIT = ("float32", "bfloat16", "float16", "bfloat16-int8", "bfloat16-int4")
_TRANSFORMERS = ("float32", "bfloat16", "float16")
_LLAMA_CPP = ("F32", "BF16", "F16", "Q8_0", "Q4_0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--shape", default="smollm2-135m", help="a model by name (%(default)s)")
    add_scaling(parser)
    add("--formats", nargs="*", default=_DECODEKIT, metavar="F", help=f"ours ({' '.join(_DECODEKIT)})")
    add("--transformers", nargs="*", default=_TRANSFORMERS, metavar="F", help=f"({' '.join(_TRANSFORMERS)})")
    add("--llama-cpp", nargs="*", default=_LLAMA_CPP, metavar="F", help=f"({' '.join(_LLAMA_CPP)})")
    add("--prompts", type=int, nargs="+", default=[64, 512], metavar="N", help="lengths (64 512)")
    add("--tokens", type=int, default=64, metavar="N", help="generated after the first prompt (%(default)s)")
    add("--widths", type=int, nargs="+", default=[1, 64, 512], metavar="N", help="ours (1 64 512)")
    add("--target", default="cpu", help="cpu or eager (%(default)s)")
    add("--busy", type=int, default=0, metavar="N", help="processes that compute meanwhile (%(default)s)")
    add("--cache", type=Path, metavar="DIR", help="keeps models and compiled decoders")
    add("--peer-python", default="", metavar="FILE", help="interpreter with llama-cpp-python and gguf (this)")
    add_common(parser, rounds=7)


def run(options: argparse.Namespace) -> None:
    """Compare, and report."""
    comparison = Comparison(
        shape=shape_named(options.shape).scaled(layers=options.layers, hidden=options.hidden_divisor),
        entries=entries(options.formats, options.transformers, options.llama_cpp),
        prompts=tuple(options.prompts),
        tokens=options.tokens,
        rounds=options.rounds,
        threads=options.threads,
        widths=tuple(options.widths),
        target=options.target,
        folder=options.cache,
        peer_python=options.peer_python,
        busy=options.busy,
    )
    finish(report(compare(comparison, progress)), options.json)
