"""
Question: how long does it take to import decodekit, and to the first token of a saved decoder.

Every measurement is a process of its own, after an uncounted one that brings the files into the system's
cache.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...neuron_backend.targets.registry import resolve
from ..measuring.arguments import add_common, check_at_least, progress
from ..measuring.machine import backend_digest, machine_facts
from ..measuring.report import Report, Threshold, finish
from ..measuring.tables import Spread, Table
from ..models.measured_model import add_model, device_of, models_of

HOST = """
import decodekit
from decodekit.decoding import EndOfSequence, Generator, Greedy, MaxNewTokens, Sample, StopStrings
from decodekit.processors import MinP, NoRepeatNgram, RepetitionPenalty, Temperature, TopK, TopP
from decodekit.speculation import DraftModel, PromptLookup, SpeculativeGenerator
from decodekit.streaming import TextIterator, TextStreamer
"""
"""Names of the packages that run on the host; a package imports a module when its name is asked for."""

WHOLE = f"{HOST}from decodekit.neuron_backend import compile_decoder, load_decoder\n"
"""The same, and the names that give a decoder."""

SETTLED = "import gc, torch\ngc.collect()"
"""
Imports torch and runs the garbage collector over its objects.

Otherwise the collector traverses all of them, some 40 ms, as soon as some 11,000 more objects exist
(torch 2.13), whatever a program imports next.
"""

_IMPORTS = (
    ("names of the host's four packages", SETTLED, HOST),
    ("and compile_decoder, load_decoder", SETTLED, WHOLE),
    ("all of them, and garbage collections meanwhile", "import torch", WHOLE),
)

_MAX_LENGTH, _WIDTHS = 1024, (1, 64)

IMPORT_GOAL_MS, TOKEN_GOAL_SECONDS = 50.0, 3.0

_PHASES = (
    ("began", "the interpreter"),
    ("torch", "import torch"),
    ("decodekit", "import decodekit"),
    ("loaded", "load the decoder"),
    ("token", "prompt and token"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's arguments."""
    add_model(parser, "smollm2-135m")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keeps the saved decoder")
    add_common(parser, rounds=5)


def run(options: argparse.Namespace) -> None:
    """Measure both, and report."""
    check_at_least("rounds", options.rounds, 1)
    (model,) = models_of(options)
    progress("imports")
    imported = import_milliseconds([(before, program) for _, before, program in _IMPORTS], options.rounds)
    with tempfile.TemporaryDirectory() as temporary:
        sizes = f"w{'_'.join(map(str, _WIDTHS))}-n{_MAX_LENGTH}"
        folder = (options.cache or Path(temporary)) / f"start-{model.cache_key}-{sizes}-{backend_digest()}"
        if not (folder / "decoder.json").exists():
            progress("compiling a decoder to save")
            model.decoder(1, _MAX_LENGTH, _WIDTHS).save(folder)
        progress("first tokens")
        runs = [_first_token(folder, options.threads) for _ in range(options.rounds + 1)][1:]
    totals = [run["seconds"] for run in runs]
    phases = [(words, str(Spread.of([run["phases"][name] for run in runs]))) for name, words in _PHASES]
    rows = [(name, str(Spread.of(times))) for (name, _, _), times in zip(_IMPORTS, imported, strict=True)]
    compiled_again = any(run["compiled"] for run in runs)
    report = Report(
        benchmark="start",
        question="How long to import decodekit, and to the first token of a saved decoder?",
        settings={
            "model": model.description,
            "dtype": model.dtype,
            "weights": model.weights,
            "threads": options.threads,
            "rounds": options.rounds,
        },
        tables=[
            Table("Milliseconds to import, torch being imported already", ("what", "ms"), rows),
            Table("Seconds to the first token", ("what", "s"), [*phases, ("all", str(Spread.of(totals)))]),
        ],
        thresholds=[
            Threshold(
                "import of decodekit, torch being there",
                statistics.median(imported[1]),
                "<=",
                IMPORT_GOAL_MS,
                " ms",
            ),
            Threshold(
                "first token of a saved decoder", statistics.median(totals), "<=", TOKEN_GOAL_SECONDS, " s"
            ),
        ],
        notes=["The saved decoder was compiled again: see its warnings."] * compiled_again,
        results={"import_ms": imported, "first_token": runs},
        machine=machine_facts(device_of(resolve(model.target).name)),
    )
    finish(report, options.json)


def import_milliseconds(programs: Sequence[tuple[str, str]], rounds: int) -> list[list[float]]:
    """For each of *programs*, a part that is not timed and one that is, a number a round, in turns."""
    times: list[list[float]] = [[] for _ in programs]
    for i in range(rounds + 1):
        for (before, program), spent in zip(programs, times, strict=True):
            code = (
                f"import time\n{before}\nstart = time.perf_counter()\n"
                f"{program}\nprint(1e3 * (time.perf_counter() - start))"
            )
            done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
            if i:
                spent.append(float(done.stdout))
    return times


def _first_token(folder: Path, threads: int) -> dict[str, Any]:
    began = time.time()
    command = [sys.executable, "-m", "decodekit.benchmarks.generation.first_token", str(folder), str(threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # it was requested
        line = process.stdout.readline()
        seconds = time.time() - began
    if process.returncode or not line:
        raise RuntimeError(f"the process must give a token: got status {process.returncode}")
    answer = json.loads(line)
    times = [began, *(answer["since"][name] for name, _ in _PHASES)]
    steps = [after - before for before, after in itertools.pairwise(times)]
    names = [name for name, _ in _PHASES]
    return {
        "seconds": seconds,
        "phases": dict(zip(names, steps, strict=True)),
        "compiled": answer["compiled"],
    }
