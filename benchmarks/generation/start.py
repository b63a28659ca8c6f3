"""
Question: how long does it take to import decodekit, and to the first token of a saved decoder.

Every measurement is a process of its own, after one that is not counted and leaves files in the system's
memory.
"""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .comparison_files import backend_digest
from .report import Bar, Report, Spread, Table
from .shapes import Shape
from .subject import Subject

HOST = """
import decodekit
from decodekit.decoding import EndOfSequence, Generator, Greedy, MaxNewTokens, Sample, StopStrings
from decodekit.processors import MinP, NoRepeatNgram, RepetitionPenalty, Temperature, TopK, TopP
from decodekit.speculation import DraftModel, PromptLookup, SpeculativeGenerator
from decodekit.streaming import TextIterator, TextStreamer
"""
"""What programs name of the host's rooms; the rooms themselves import nothing before they are asked."""

WHOLE = f"{HOST}from decodekit.neuron_backend import compile_decoder, load_decoder\n"
"""And what they get their decoder from."""

SETTLED = "import gc, torch\ngc.collect()"
"""
After it, Python's collector has been through what torch has made.

Else it goes through all of that, some 40 ms, as soon as some 11,000 more objects have been made (torch 2.13),
by whatever a program imports next.
"""

_IMPORTS = (
    ("names of the host's four rooms", SETTLED, HOST),
    ("and compile_decoder, load_decoder", SETTLED, WHOLE),
    ("all of them, and whatever the collector does meanwhile", "import torch", WHOLE),
)

IMPORT_GOAL_MS, TOKEN_GOAL_SECONDS = 50.0, 3.0

_PHASES = (
    ("began", "the interpreter"),
    ("torch", "import torch"),
    ("decodekit", "import decodekit"),
    ("loaded", "load the decoder"),
    ("token", "prompt and token"),
)


def start(
    subject: Subject,
    rounds: int,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """
    Measure both.

    Args:
        subject: The decoder that is saved.

        rounds: Counted processes of each kind.

        folder: Keeps the saved decoder. None: nothing is kept.

        progress: Called with a line now and then.

    Raises:
        ValueError: An argument breaks its rule.
    """
    if rounds < 1:
        raise ValueError(f"'rounds' must be >= 1: got {rounds}")
    progress("imports")
    imported = import_milliseconds([(before, program) for _, before, program in _IMPORTS], rounds)
    with tempfile.TemporaryDirectory() as temporary:
        place = (folder or Path(temporary)) / f"start-{_key(subject)}-{backend_digest()}"
        if not (place / "decoder.json").exists():
            progress("compiling a decoder to save")
            subject.decoder(1, 1024, (1, 64)).save(place)
        progress("first tokens")
        runs = [_first_token(place) for _ in range(rounds + 1)][1:]
    totals = [run["seconds"] for run in runs]
    phases = [(words, str(Spread.of([run["phases"][name] for run in runs]))) for name, words in _PHASES]
    rows: list[tuple[Any, ...]] = [
        (name, str(Spread.of(times))) for (name, _, _), times in zip(_IMPORTS, imported, strict=True)
    ]
    return Report(
        benchmark="start",
        question="How long to import decodekit, and to the first token of a saved decoder?",
        settings={
            "model": subject.description,
            "dtype": subject.dtype,
            "weights": subject.weights,
            "rounds": rounds,
        },
        tables=[
            Table("Milliseconds to import, torch being there", ("what", "ms"), rows),
            Table("Seconds to the first token", ("what", "s"), [*phases, ("all", str(Spread.of(totals)))]),
        ],
        bars=[
            Bar(
                "import of decodekit, torch being there",
                statistics.median(imported[1]),
                "<=",
                IMPORT_GOAL_MS,
                " ms",
            ),
            Bar("first token of a saved decoder", statistics.median(totals), "<=", TOKEN_GOAL_SECONDS, " s"),
        ],
        notes=[]
        if not any(run["compiled"] for run in runs)
        else ["The saved decoder was compiled again: see its warnings."],
        results={"import_ms": imported, "first_token": runs},
    )


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


def _first_token(folder: Path) -> dict[str, Any]:
    began = time.time()
    command = [sys.executable, "-m", "decodekit.bench.first_token", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # asked for
        line = process.stdout.readline()
        seconds = time.time() - began
    if process.returncode or not line:
        raise RuntimeError(f"the process must give a token: got status {process.returncode}")
    said = json.loads(line)
    times = [began, *(said["since"][name] for name, _ in _PHASES)]
    steps = [after - before for before, after in itertools.pairwise(times)]
    names = [name for name, _ in _PHASES]
    return {"seconds": seconds, "phases": dict(zip(names, steps, strict=True)), "compiled": said["compiled"]}


def _key(subject: Subject) -> str:
    model = subject.model
    name = f"{model.name}-{model.digest()}" if isinstance(model, Shape) else model.name
    return f"{name}-{subject.target}-{subject.dtype}-{subject.weights}"
