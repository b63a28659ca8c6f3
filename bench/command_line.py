"""``python -m decodekit bench``: its commands and their flags. Heavy imports wait."""

import argparse
import sys
from pathlib import Path
from typing import Any

_OURS = ("float32", "bfloat16", "float16", "bfloat16-int8", "bfloat16-int4")
_TRANSFORMERS = ("float32", "bfloat16", "float16")
_LLAMA_CPP = ("F32", "BF16", "F16", "Q8_0", "Q4_0")


def add_bench(commands: Any) -> None:
    """Add ``bench`` to the *commands* of a parser."""
    text = "Benchmarks on random weights: nothing is downloaded. Each prints a table, and JSON where asked."
    bench = commands.add_parser("bench", help="measure", description=text)
    benchmarks = bench.add_subparsers(required=True, metavar="BENCHMARK")
    _add_decode(benchmarks)


def _add_decode(benchmarks: Any) -> None:
    text = "A token and a prompt, next to transformers and llama.cpp with the same weights."
    decode = benchmarks.add_parser("decode", help="next to transformers and llama.cpp", description=text)
    decode.set_defaults(command=_decode)
    add = decode.add_argument
    add("--shape", default="smollm2-135m", help="a model by name (%(default)s)")
    _add_scaling(add)
    add("--formats", nargs="*", default=_OURS, metavar="F", help=f"ours ({' '.join(_OURS)})")
    add("--transformers", nargs="*", default=_TRANSFORMERS, metavar="F", help=f"({' '.join(_TRANSFORMERS)})")
    add("--llama-cpp", nargs="*", default=_LLAMA_CPP, metavar="F", help=f"({' '.join(_LLAMA_CPP)})")
    add("--prompts", type=int, nargs="+", default=[64, 512], metavar="N", help="lengths (64 512)")
    add("--tokens", type=int, default=64, metavar="N", help="generated after the first prompt (%(default)s)")
    add("--widths", type=int, nargs="+", default=[1, 64, 512], metavar="N", help="ours (1 64 512)")
    add("--target", default="cpu", help="cpu or eager (%(default)s)")
    add("--cache", type=Path, metavar="DIR", help="keeps models and compiled decoders")
    add("--peer-python", default="", metavar="FILE", help="interpreter with llama-cpp-python and gguf (this)")
    _add_common(add, rounds=7)


def _decode(options: argparse.Namespace) -> int:
    from .decode import Comparison, compare, entries
    from .decode_report import report
    from .report import finish
    from .shapes import shape_named

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
    )
    finish(report(compare(comparison, _progress)), options.json)
    return 0


def _add_scaling(add: Any) -> None:
    add("--layers", type=int, metavar="N", help="only so many: then no figure of the full shape")
    add("--hidden-divisor", type=int, metavar="N", help="width and heads divided by N: likewise")


def _add_common(add: Any, rounds: int) -> None:
    add("--threads", type=int, default=2, metavar="N", help="(%(default)s)")
    add("--rounds", type=int, default=rounds, metavar="N", help="counted ones (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write everything measured")


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
