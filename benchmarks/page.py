"""
Run the benchmarks, and write docs/benchmarks.md from their reports.

    python -m decodekit bench report [--quick] [--only NAME ...] [--machine WORD] [--peer-python FILE]
        [--cache DIR]
    python -m decodekit bench report --write-only

To be run in a checkout. Each benchmark writes docs/benchmarks/NAME.json; the page is made of all that
exist, so that some can be measured again, or on another machine: with --machine they are written to
NAME-WORD.json, and stand on the page behind NAME. The reason why a goal is missed stands in
benchmarks/missed_thresholds.json, by NAME or NAME-WORD and goal. --quick tests that all of them run; its
figures mean little, and are written to a new temporary folder unless --results says where.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from ..decoding.whole_file import write_whole
from .measuring.report import Report
from .measuring.tables import markdown_row

RESULTS = Path("docs", "benchmarks")
PAGE = Path("docs", "benchmarks.md")
REASONS = Path(__file__).with_name("missed_thresholds.json")

NO_REASON = "no reason is given"


@attrs.frozen
class Run:
    """A benchmark with its options for a full and for a quick measurement."""

    name: str
    command: tuple[str, ...]
    """The benchmark's name and the options of both."""

    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    """Which of ``--peer-python`` and ``--cache`` are passed on."""

    def arguments(self, quick: bool, shared: Mapping[str, str | None], file: Path) -> list[str]:
        """The arguments of ``python -m decodekit bench``."""
        flags = [part for name in self.takes if (value := shared[name]) for part in (f"--{name}", value)]
        options = self.quick if quick else self.full
        return [*self.command, *options, *flags, "--json", str(file)]


def _run(name: str, *full: str, quick: Sequence[str], takes: Sequence[str] = ()) -> Run:
    return Run(name, (name,), full, tuple(quick), tuple(takes))


_FEW_LAYERS = ("--layers", "2", "--rounds", "1", "--tokens", "8", "--widths", "1", "64")
_FEW = ("--of-a-kind", "1", "--tokens", "64", "--clock-tokens", "8", "--rounds", "1")
_PEERS = ("peer-python", "cache")
_SERVED = ("--rows", "2", "--requests", "3", "--tokens", "4", "--rounds", "1")
_TINY = ("--shape", "tiny", "--rounds", "1")

RUNS = (
    _run("decode", quick=_FEW_LAYERS, takes=_PEERS),
    # The same on a processor without AMX, on one thread, and beside a busy process a core.
    *(
        Run(name, ("decode", "--transformers", *options), quick=_FEW_LAYERS, takes=_PEERS)
        for name, *options in (
            ("decode-avx512",),
            ("decode-one-thread", "--threads", "1"),
            ("decode-busy", "--busy", "2", "--prompts", "64"),
        )
    ),
    _run("positions", quick=(*_TINY, "--long", "512")),
    _run("padding", quick=_TINY),
    Run("padding-int8", ("padding", "--weights", "int8"), (), _TINY),
    _run("columns", quick=_TINY),
    Run("columns-int8", ("columns", "--weights", "int8"), (), _TINY),
    _run("busy", quick=(*_TINY, "--forwards", "10")),
    _run("first-hour", quick=("--max-tokens", "8")),
    _run("start", quick=_TINY, takes=("cache",)),
    _run("compile-time", quick=(*_TINY, "--formats", "bfloat16")),
    _run(
        "latency",
        *("--shape", "llama-2-7b", "llama-2-13b", "--layers", "2", "--batch", "1", "4", "--rounds", "1"),
        quick=(*_TINY, "--length", "64"),
    ),
    _run(
        "throughput",
        *("--shape", "llama-2-7b", "mistral-7b", "llama-2-70b", "--layers", "1", "--batch", "8"),
        *("--rounds", "1", "--lengths", "128/128", "2048/128"),
        quick=(*_TINY, "--lengths", "16/16"),
    ),
    _run("serving", quick=_SERVED, takes=("cache",)),
    Run("serving-int8", ("serving", "--weights", "int8"), (), _SERVED, ("cache",)),
    _run("products", quick=("--layers", "1", "--rows", "1", "5")),
    _run("host", quick=("--rounds", "1")),
    _run("processors", quick=("--rounds", "1")),
    _run("fused", quick=("--rounds", "1", "--vocab", "32000")),
    _run("speculation", quick=("--quick", "--length", "4"), takes=("cache",)),
    Run(
        "speculation-bfloat16",
        ("speculation", "--dtype", "bfloat16", "--only", "row"),
        (),
        ("--quick", "--length", "4"),
        ("cache",),
    ),
    Run(
        "speculation-int8",
        ("speculation", "--dtype", "bfloat16", "--weights", "int8", "--only", "row"),
        ("--transformers-dtype", "float16"),
        ("--quick", "--length", "4"),
        ("cache",),
    ),
    Run("real-prompts", ("real-prompts",), (), _FEW, ("cache",)),
    Run("real-prompts-int8", ("real-prompts", "--weights", "int8"), (), _FEW, ("cache",)),
    _run("acceptance", quick=("--prompts", "8", "--tokens", "16")),
    _run("streaming", quick=("--tokens", "200")),
    Run("streaming-spin", ("streaming", "--spin"), quick=("--tokens", "200")),
    _run("weights", quick=("--layers", "1", "--rounds", "1", "--texts", "4")),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    names = [run.name for run in RUNS]
    add = parser.add_argument
    add("--quick", action="store_true", help="little of everything")
    add(
        "--machine", type=_word, metavar="WORD", help="keep what other machines measured, and write NAME-WORD"
    )
    add("--only", nargs="+", choices=names, default=names)
    add("--write-only", action="store_true", help="measure nothing")
    add("--peer-python", metavar="FILE", help="interpreter with llama-cpp-python and gguf")
    add("--cache", metavar="DIR", help="folder that keeps models and compiled decoders")
    add("--results", type=Path, metavar="DIR", help=f"of the JSON files ({RESULTS}; quick: temporary)")
    add("--page", type=Path, metavar="FILE", help=f"({PAGE}; quick: beside the folder of the results)")


def _word(given: str) -> str:
    """A word that makes other names of the runs', none of which is one of theirs."""
    names = {run.name for run in RUNS}
    if not re.fullmatch(r"[A-Za-z0-9.]+", given) or any(f"{name}-{given}" in names for name in names):
        raise argparse.ArgumentTypeError(
            f"must be letters and digits, and end no benchmark's name: got {given!r}"
        )
    return given


def run(options: argparse.Namespace) -> int:
    """Measure, and write the page; the exit status."""
    failed = []
    if options.write_only and (options.machine or options.quick):
        flag = "--machine" if options.machine else "--quick"
        raise SystemExit(f"report: {flag} is for what is measured: leave out --write-only")
    results, destination = _places(options)
    if not options.write_only:
        shared = {"peer-python": options.peer_python, "cache": options.cache}
        runs = [run for run in RUNS if run.name in options.only]
        if options.machine:
            runs = [attrs.evolve(run, name=f"{run.name}-{options.machine}") for run in runs]
        failed = measure(runs, options.quick, shared, results)
    # Before the page is made, which may be refused.
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    # Quick measurements have fewer goals than there are reasons for.
    write(results, destination, {} if options.quick else json.loads(REASONS.read_text()))
    print(f"\n{destination}")
    return int(bool(failed))


def _places(options: argparse.Namespace) -> tuple[Path, Path]:
    """The folder of the results, and the file of the page; by default no quick one is that of the docs."""
    results: Path | None = options.results
    if results is None:
        folder = Path(tempfile.mkdtemp(prefix="decodekit-bench-")) if options.quick else RESULTS.parent
        results = folder / RESULTS.name
    destination: Path | None = options.page
    if destination is None:
        destination = results.with_name(f"{results.name}.md") if options.quick else PAGE
    return results, destination


def measure(
    runs: Sequence[Run],
    quick: bool,
    shared: Mapping[str, str | None],
    results: Path,
    program: Sequence[str] = ("-m", "decodekit", "bench"),
) -> list[str]:
    """Run *runs* one after another with ``python *program*``; the names of those that failed."""
    failed = []
    results.mkdir(parents=True, exist_ok=True)
    for run in runs:
        print(f"\n== {run.name}", flush=True)
        arguments = run.arguments(quick, shared, results / f"{run.name}.json")
        if subprocess.run([sys.executable, *program, *arguments], check=False).returncode:
            failed.append(run.name)
    return failed


def write(results: Path, destination: Path, reasons: Mapping[str, Mapping[str, str]]) -> None:
    """Write the page and its plots from every report in the folder *results*."""
    files = sorted(results.glob("*.json"), key=lambda file: (_place(file.stem), file.stem))
    reports = {file.stem: Report.read(file) for file in files}
    text = page(reports, reasons)
    for name, report in reports.items():
        if report.picture is not None:
            report.picture.plot(results / f"{name}.svg")
    write_whole(destination, text.encode())


def _place(name: str) -> int:
    """The place of a run among :data:`RUNS`, also if *name* ends with a machine; others come last."""
    names = [run.name for run in RUNS]
    ends = [i for i, sign in enumerate(f"{name}-") if sign == "-"]
    return next((names.index(name[:end]) for end in reversed(ends) if name[:end] in names), len(names))


def page(reports: Mapping[str, Report], reasons: Mapping[str, Mapping[str, str]]) -> str:
    """
    The page, in Markdown.

    Args:
        reports: By name, in the order of the page.

        reasons: By name and goal, why the goal is missed.

    Raises:
        ValueError: A reason is given for a goal that its report does not have, or for no benchmark.
    """
    for name, given in reasons.items():
        if name not in reports and _place(name) < len(RUNS):
            # Not measured here.
            continue
        known = {threshold.what for threshold in reports[name].thresholds} if name in reports else set()
        if unknown := sorted(set(given) - known):
            raise ValueError(f"'reasons' must be for goals that there are: got {name}: {unknown}")
    parts = [
        "# Benchmarks",
        "Written by `python -m decodekit bench report`: what each command below printed, on the machine and "
        "the day that it names. All measurements are in `docs/benchmarks/` as JSON. A spread is "
        "lowest–highest.",
        "## Goals",
        _goals(reports, reasons),
        *(_section(name, report) for name, report in reports.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _goals(reports: Mapping[str, Report], reasons: Mapping[str, Mapping[str, str]]) -> str:
    lines = ["| benchmark | goal | reached | | |", "| --- | --- | ---: | ---: | --- |"]
    for name, report in reports.items():
        for threshold in report.thresholds:
            what, reason = threshold.what, reasons.get(name, {}).get(threshold.what, NO_REASON)
            verdict = "met" if threshold.met else f"**not met**: {reason}"
            reached, goal = threshold.value_text, threshold.goal_text
            lines.append(markdown_row((f"[{name}](#{name})", what, reached, goal, verdict)))
    return "\n".join(lines)


def _section(name: str, report: Report) -> str:
    parts = [
        f"## {name}",
        report.question,
        f"```\n{report.command}\n```",
        "\n".join(f"- {line}" for line in report.header().splitlines()),
        *(table.markdown() for table in report.tables),
    ]
    if report.picture is not None:
        parts.append(f"![{report.picture.title}](benchmarks/{name}.svg)")
    if report.notes:
        parts.append("\n".join(f"- {note}" for note in report.notes))
    return "\n\n".join(parts)
