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
    _add_latency(benchmarks)
    _add_throughput(benchmarks)
    _add_decode(benchmarks)
    _add_positions(benchmarks)
    _add_start(benchmarks)


def _add_latency(benchmarks: Any) -> None:
    text = "Seconds to reach a length from 25, 50 and 75 % of it, beside the figures of the Inferentia2 blog."
    latency = benchmarks.add_parser("latency", help="seconds to reach 1,024 tokens", description=text)
    latency.set_defaults(command=_latency)
    add = latency.add_argument
    _add_subject(add, "llama-2-7b", several=True)
    add("--batch", type=int, nargs="+", default=[1], metavar="N", help="rows (1)")
    add("--length", type=int, default=1024, metavar="N", help="tokens of a row in the end (%(default)s)")
    _add_common(add, rounds=3)
    _add_plot(add)


def _latency(options: argparse.Namespace) -> int:
    from .latency import latency
    from .report import finish

    report = latency(_subjects(options), options.batch, options.length, options.rounds, _progress)
    finish(report, options.json, options.plot)
    return 0


def _add_throughput(benchmarks: Any) -> None:
    text = "Tokens a second for short and long prompts and answers, beside the figures of the Gaudi page."
    throughput = benchmarks.add_parser("throughput", help="tokens a second by lengths", description=text)
    throughput.set_defaults(command=_throughput)
    add = throughput.add_argument
    _add_subject(add, "llama-2-7b", several=True)
    add("--batch", type=int, nargs="+", default=[1], metavar="N", help="rows (1)")
    add(
        "--lengths",
        type=_pair,
        nargs="+",
        default=[(128, 128), (128, 2048), (2048, 128), (2048, 2048)],
        metavar="IN/OUT",
        help="of prompt and answer (128/128 128/2048 2048/128 2048/2048)",
    )
    _add_common(add, rounds=3)


def _throughput(options: argparse.Namespace) -> int:
    from .report import finish
    from .throughput import throughput

    finish(
        throughput(_subjects(options), options.batch, options.lengths, options.rounds, _progress),
        options.json,
    )
    return 0


def _add_positions(benchmarks: Any) -> None:
    text = "A token at position 100 of a decoder of 4,096 slots, next to one of 128."
    positions = benchmarks.add_parser("positions", help="a token by its position", description=text)
    positions.set_defaults(command=_positions)
    add = positions.add_argument
    _add_subject(add, "smollm2-135m")
    add("--long", type=int, default=4096, metavar="N", help="slots of the longer one (%(default)s)")
    _add_common(add, rounds=7)
    _add_plot(add)


def _positions(options: argparse.Namespace) -> int:
    from .positions import positions
    from .report import finish

    (subject,) = _subjects(options)
    finish(positions(subject, options.rounds, options.long, _progress), options.json, options.plot)
    return 0


def _add_start(benchmarks: Any) -> None:
    text = "Import, and the first token of a saved decoder, in processes of their own."
    start = benchmarks.add_parser("start", help="import and first token", description=text)
    start.set_defaults(command=_start)
    add = start.add_argument
    _add_subject(add, "smollm2-135m")
    add("--cache", type=Path, metavar="DIR", help="keeps the saved decoder")
    _add_common(add, rounds=5)


def _start(options: argparse.Namespace) -> int:
    from .report import finish
    from .start import start

    (subject,) = _subjects(options)
    finish(start(subject, options.rounds, options.cache, _progress), options.json)
    return 0


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


def _add_subject(add: Any, shape: str, several: bool = False) -> None:
    if several:
        add("--shape", nargs="+", default=[shape], metavar="NAME", help=f"models by name ({shape})")
    else:
        add("--shape", nargs=1, default=[shape], metavar="NAME", help=f"a model by name ({shape})")
    add("--model", type=Path, metavar="DIR", help="a model of your own instead of a shape")
    _add_scaling(add)
    add("--target", default="auto", metavar="NAME", help="as compile_decoder's (%(default)s)")
    add("--dtype", metavar="NAME", help="bfloat16 for a shape, the model's own")
    add("--weights", metavar="FORMAT", help="int8 or int4 (as --dtype)")


def _subjects(options: argparse.Namespace) -> list[Any]:
    from .shapes import shape_named
    from .subject import Subject

    how = {"target": options.target, "dtype": options.dtype, "weights": options.weights}
    how |= {"threads": options.threads}
    if options.model is not None:
        if options.layers is not None or options.hidden_divisor is not None:
            raise ValueError("--layers and --hidden-divisor are about shapes: give no --model with them")
        return [Subject(options.model, **how)]
    scale = {"layers": options.layers, "hidden": options.hidden_divisor}
    return [Subject(shape_named(name).scaled(**scale), **how) for name in options.shape]


def _pair(text: str) -> tuple[int, int]:
    prompt, _, answer = text.partition("/")
    return int(prompt), int(answer)


def _add_plot(add: Any) -> None:
    add("--plot", type=Path, metavar="FILE", help="draw the curves, such as into curves.svg; matplotlib")


def _add_scaling(add: Any) -> None:
    add("--layers", type=int, metavar="N", help="only so many: then no figure of the full shape")
    add("--hidden-divisor", type=int, metavar="N", help="width and heads divided by N: likewise")


def _add_common(add: Any, rounds: int) -> None:
    add("--threads", type=int, default=2, metavar="N", help="(%(default)s)")
    add("--rounds", type=int, default=rounds, metavar="N", help="counted ones (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write everything measured")


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
