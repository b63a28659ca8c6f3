"""
Run every benchmark, and write docs/benchmarks.md from what they found.

    python benchmarks/report.py [--quick] [--only NAME ...] [--peer-python FILE] [--cache DIR]
    python benchmarks/report.py --write-only

Each benchmark writes docs/benchmarks/NAME.json; the page is made of all that are there, so that some can
be measured again, or on another machine. Why a goal is missed stands in benchmarks/reasons.json, by
NAME and goal. ``--quick`` sees that all of them run; its figures are worth little.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

import attrs

from decodekit.bench.plot import plot_curves
from decodekit.bench.report import Report, number

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "benchmarks"
PAGE = ROOT / "docs" / "benchmarks.md"
REASONS = ROOT / "benchmarks" / "reasons.json"

NO_REASON = "no reason is given"


@attrs.frozen
class Run:
    """A command, and how to make it short."""

    name: str
    command: tuple[str, ...]
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    """Which of this script's own flags it takes too."""

    @property
    def script(self) -> pathlib.Path | None:
        """Its file, if it is none of ``python -m decodekit bench``."""
        return None if self.command[0] == "-m" else ROOT / self.command[0]

    def arguments(self, options: argparse.Namespace, file: pathlib.Path) -> list[str]:
        """What Python is to run."""
        shared = {name: getattr(options, name.replace("-", "_")) for name in self.takes}
        flags = [part for name, value in shared.items() if value for part in (f"--{name}", str(value))]
        return [*self.command, *(self.quick if options.quick else self.full), *flags, "--json", str(file)]


def _bench(name: str, *full: str, quick: Sequence[str], takes: Sequence[str] = ()) -> Run:
    return Run(name, ("-m", "decodekit", "bench", name), full, tuple(quick), tuple(takes))


_TINY = ("--shape", "tiny", "--rounds", "1")

RUNS = (
    _bench(
        "decode",
        quick=("--layers", "2", "--rounds", "1", "--tokens", "8", "--widths", "1", "64"),
        takes=("peer-python", "cache"),
    ),
    _bench("positions", quick=(*_TINY, "--long", "512")),
    _bench("start", quick=_TINY, takes=("cache",)),
    _bench(
        "latency",
        *("--shape", "llama-2-7b", "llama-2-13b", "--layers", "2", "--batch", "1", "4", "--rounds", "1"),
        quick=(*_TINY, "--length", "64"),
    ),
    _bench(
        "throughput",
        *("--shape", "llama-2-7b", "mistral-7b", "llama-2-70b", "--layers", "1", "--batch", "8"),
        *("--rounds", "1", "--lengths", "128/128", "2048/128"),
        quick=(*_TINY, "--lengths", "16/16"),
    ),
    Run("products", ("benchmarks/products.py",), quick=("--layers", "1", "--rows", "1", "5")),
    Run("host", ("benchmarks/host.py",), quick=("--rounds", "1")),
    Run("processors", ("benchmarks/processors.py",), quick=("--rounds", "1")),
    Run("fused", ("benchmarks/fused.py",), quick=("--rounds", "1", "--vocab", "32000")),
    Run("speculation", ("benchmarks/speculation.py",), quick=("--quick", "--length", "4"), takes=("cache",)),
    Run(
        "speculation-bfloat16",
        ("benchmarks/speculation.py", "--dtype", "bfloat16", "--only", "row"),
        (),
        ("--quick", "--length", "4"),
        ("cache",),
    ),
    Run(
        "speculation-int8",
        ("benchmarks/speculation.py", "--dtype", "bfloat16", "--weights", "int8", "--only", "row"),
        ("--transformers-dtype", "float16"),
        ("--quick", "--length", "4"),
        ("cache",),
    ),
    Run("acceptance", ("benchmarks/acceptance.py",), quick=("--prompts", "8", "--tokens", "16")),
    Run("streaming", ("benchmarks/streaming.py",), quick=("--tokens", "200")),
    Run("streaming-spin", ("benchmarks/streaming.py", "--spin"), quick=("--tokens", "200")),
    Run("weights", ("benchmarks/weights.py",), quick=("--layers", "1", "--rounds", "1", "--texts", "4")),
)


def measure(runs: Sequence[Run], options: argparse.Namespace, results: pathlib.Path) -> list[str]:
    """Run them one after another; the names of those that failed or are not there."""
    failed = []
    results.mkdir(parents=True, exist_ok=True)
    for run in runs:
        print(f"\n== {run.name}", flush=True)
        if run.script is not None and not run.script.exists():
            print(f"absent: {run.script}", flush=True)
            failed.append(run.name)
            continue
        command = [sys.executable, *run.arguments(options, results / f"{run.name}.json")]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(run.name)
    return failed


def page(reports: Mapping[str, Report], reasons: Mapping[str, Mapping[str, str]]) -> str:
    """
    The page, in Markdown.

    Args:
        reports: By name, in the order of the page.

        reasons: By name and goal, why that is not met.

    Raises:
        ValueError: A reason is given for a goal that there is not.
    """
    for name, given in reasons.items():
        known = {bar.what for bar in reports[name].bars} if name in reports else set()
        if unknown := sorted(set(given) - known):
            raise ValueError(f"'reasons' must be for goals that there are: got {name}: {unknown}")
    parts = [
        "# Benchmarks",
        "Written by `python benchmarks/report.py`: what each command below printed, on the machine and the "
        "day that it names. All measurements are in `docs/benchmarks/` as JSON. A spread is lowest–highest.",
        "## Goals",
        _goals(reports, reasons),
        *(_section(name, report) for name, report in reports.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _goals(reports: Mapping[str, Report], reasons: Mapping[str, Mapping[str, str]]) -> str:
    lines = ["| benchmark | goal | reached | | |", "| --- | --- | ---: | ---: | --- |"]
    for name, report in reports.items():
        for bar in report.bars:
            verdict = "met" if bar.met else "**not met**: " + reasons.get(name, {}).get(bar.what, NO_REASON)
            reached, goal = f"{number(bar.value)}{bar.unit}", f"{bar.rule} {number(bar.goal)}{bar.unit}"
            cells = (f"[{name}](#{name})", bar.what, reached, goal, verdict)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _section(name: str, report: Report) -> str:
    parts = [
        f"## {name}",
        report.question,
        f"```\n{report.command}\n```",
        "\n".join(f"- {line}" for line in report.header().splitlines()),
        *(table.markdown() for table in report.tables),
    ]
    if report.curves is not None:
        parts.append(f"![{report.curves.title}](benchmarks/{name}.svg)")
    if report.notes:
        parts.append("\n".join(f"- {note}" for note in report.notes))
    return "\n\n".join(parts)


def write(results: pathlib.Path, destination: pathlib.Path, reasons: Mapping[str, Mapping[str, str]]) -> None:
    """The page and its pictures, from every report in the folder *results*."""
    order = {run.name: i for i, run in enumerate(RUNS)}
    files = sorted(results.glob("*.json"), key=lambda file: (order.get(file.stem, len(order)), file.stem))
    reports = {file.stem: Report.read(file) for file in files}
    text = page(reports, reasons)
    for name, report in reports.items():
        if report.curves is not None:
            plot_curves(results / f"{name}.svg", report.curves)
    destination.write_text(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [run.name for run in RUNS]
    parser.add_argument("--quick", action="store_true", help="little of everything")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--write-only", action="store_true", help="measure nothing")
    parser.add_argument("--peer-python", help="interpreter with llama-cpp-python and gguf")
    parser.add_argument("--cache", help="folder that keeps models and compiled decoders")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    options = parser.parse_args(arguments)
    failed = []
    if not options.write_only:
        failed = measure(
            [run for run in RUNS if run.name in options.only], options, options.results.resolve()
        )
    reasons = json.loads(REASONS.read_text()) if REASONS.exists() else {}
    write(options.results, options.page, reasons)
    if failed:
        print(f"\nfailed or not there: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
