"""
Question: how long does compiling a decoder take, and with twice the layers.

Every measurement is a process of its own with an empty cache folder, so that nothing compiled before is
found. Making the model and ``import torch`` are not counted; what the compiler imports is.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

import attrs

from ..measuring.arguments import add_common, check_at_least, progress
from ..measuring.report import Report, Threshold, finish
from ..measuring.tables import Spread, Table
from ..measuring.timing import median_ratio
from ..models.shapes import Shape, add_scaling, shape_named

GOALS = {"bfloat16": 30.0, "bfloat16-int8": 30.0, "float16": 45.0, "float32": 45.0, "bfloat16-int4": 45.0}
"""Seconds by format."""

DEEPER_GOAL = 1.3
"""The largest ratio of the time with twice the layers to the time with the model's own."""

WIDTHS, MAX_LENGTH = (1, 5, 64), 1024


_PROGRAM = f"""
import ast, sys, time
import torch
from decodekit.benchmarks.models.shapes import Shape
from decodekit.neuron_backend import compile_decoder

numbers, name, threads = ast.literal_eval(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dtype, _, weights = name.partition("-")
model = Shape(**numbers).model({MAX_LENGTH}, getattr(torch, dtype))
torch.set_num_threads(threads)
begun = time.perf_counter()
options = dict(max_length={MAX_LENGTH}, widths={WIDTHS}, dtype=dtype, weights=weights or None)
compile_decoder(model, target="cpu", progress=False, **options)
print(time.perf_counter() - begun)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add = parser.add_argument
    add("--shape", default="smollm2-135m", metavar="NAME", help="a model by name (%(default)s)")
    add_scaling(parser)
    add(
        "--formats",
        nargs="+",
        choices=tuple(GOALS),
        default=tuple(GOALS),
        help="what is compiled, the first one also with twice the layers",
    )
    add_common(parser, rounds=3)


def run(options: argparse.Namespace) -> None:
    """Compile every format, the first one also with twice the layers, and report."""
    check_at_least("rounds", options.rounds, 1)
    check_at_least("threads", options.threads, 1)
    shape = shape_named(options.shape).scaled(layers=options.layers, hidden=options.hidden_divisor)
    deeper = attrs.evolve(shape, num_hidden_layers=2 * shape.num_hidden_layers)
    first = options.formats[0]
    models = [(name, shape) for name in options.formats] + [(first, deeper)]
    times: list[list[float]] = [[] for _ in models]
    for _ in range(options.rounds):
        for (name, sizes), spent in zip(models, times, strict=True):
            progress(f"compiling {name}, {sizes.num_hidden_layers} layers")
            spent.append(compile_seconds(sizes, name, options.threads))
    rows = [
        (name, sizes.num_hidden_layers, str(Spread.of(spent)))
        for (name, sizes), spent in zip(models, times, strict=True)
    ]
    medians = [statistics.median(spent) for spent in times]
    report = Report(
        benchmark="compile-time",
        question="How long does compiling a decoder take, and with twice the layers?",
        settings={
            "model": str(shape),
            "widths": WIDTHS,
            "threads": options.threads,
            "rounds": options.rounds,
        },
        tables=[
            Table("Seconds of compile_decoder, nothing compiled before", ("format", "layers", "s"), rows)
        ],
        thresholds=[
            *(
                Threshold(f"seconds to compile {name}", seconds, "<=", GOALS[name])
                for name, seconds in zip(options.formats, medians[:-1], strict=True)
            ),
            Threshold(
                f"twice the layers, {first}", median_ratio(times[-1], times[0]), "<=", DEEPER_GOAL, "×"
            ),
        ],
        notes=[
            "The compiler's processes use all cores; the threads are those of the forwards that are compared."
        ],
        results=[
            {"format": name, "layers": sizes.num_hidden_layers, "seconds": spent}
            for (name, sizes), spent in zip(models, times, strict=True)
        ],
    )
    finish(report, options.json)


def compile_seconds(shape: Shape, name: str, threads: int) -> float:
    """
    Seconds of ``compile_decoder`` for *shape* in the format *name*, in a process with an empty cache.

    Raises:
        ValueError: Compiling failed.
    """
    arguments = [repr(attrs.asdict(shape)), name, str(threads)]
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "DECODEKIT_CACHE": empty}
        # Set, it would take the place of the folder within the cache.
        environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
        command = [sys.executable, "-c", _PROGRAM, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{name!r} must compile: got status {done.returncode}: {done.stderr[-2000:]}")
    return float(done.stdout)
