"""The result of a benchmark: a report for a terminal, as JSON, as Markdown and as a plot."""

import contextlib
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from ...decoding.whole_file import write_whole
from .machine import machine_facts, today, versions
from .tables import Table, as_texts, number


# Generic converters would lose the element types under mypy.
def _tables(values: Iterable[Table]) -> tuple[Table, ...]:
    return tuple(values)


def _thresholds(values: Iterable["Threshold"]) -> tuple["Threshold", ...]:
    return tuple(values)


@attrs.frozen
class Curves:
    """Named curves of one plot."""

    title: str
    x_label: str
    y_label: str
    points: Mapping[str, Sequence[Sequence[float]]]
    """Name to pairs of x and y; at least one point each."""

    def plot(self, file: Path) -> None:
        """
        Draw the curves into *file*, whose suffix selects the format, such as ``.svg``.

        Raises:
            ImportError: matplotlib is not installed.
        """
        with _axes(file) as axes:
            for name, points in self.points.items():
                axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
            axes.set(title=self.title, xlabel=self.x_label, ylabel=self.y_label)
            axes.grid(alpha=0.3)


@attrs.frozen
class Bars:
    """Groups of bars side by side."""

    title: str
    y_label: str
    groups: tuple[str, ...] = attrs.field(converter=as_texts)
    heights: Mapping[str, Sequence[float | None]]
    """By name, one a group; None where there is none."""

    def plot(self, file: Path) -> None:
        """Draw the bars, as :meth:`Curves.plot`."""
        width = 0.8 / len(self.heights)
        with _axes(file) as axes:
            for i, (name, heights) in enumerate(self.heights.items()):
                places = [group - 0.4 + (i + 0.5) * width for group in range(len(heights))]
                drawn = axes.bar(places, [height or 0.0 for height in heights], width, label=name)
                axes.bar_label(
                    drawn, ["" if height is None else number(height) for height in heights], fontsize=7
                )
            axes.set_xticks(range(len(self.groups)), self.groups)
            axes.set(title=self.title, ylabel=self.y_label)


@contextlib.contextmanager
def _axes(file: Path) -> Iterator[Any]:
    """Axes of a figure that is saved in *file* after the body."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a plot needs matplotlib: pip install 'decodekit[plot]'") from error
    # The salt and the missing date make equal plots give equal files.
    with rc_context({"svg.hashsalt": "decodekit"}):
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot()
        yield axes
        axes.set_ylim(bottom=0)
        axes.legend(fontsize="small")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


@attrs.frozen
class Threshold:
    """A goal for a measured value, and whether it is met."""

    what: str
    """Its name; the reason for a miss is stored under this name."""

    value: float
    rule: Literal["<=", ">="]
    goal: float
    unit: str = ""

    @property
    def met(self) -> bool:
        """True if *value* satisfies the rule."""
        return self.value <= self.goal if self.rule == "<=" else self.value >= self.goal

    @property
    def value_text(self) -> str:
        """The measured value with its unit."""
        return f"{number(self.value)}{self.unit}"

    @property
    def goal_text(self) -> str:
        """The rule and the goal with its unit."""
        return f"{self.rule} {number(self.goal)}{self.unit}"

    def __str__(self) -> str:
        verdict = "met" if self.met else "NOT MET"
        return f"{self.what}: {self.value_text}, goal {self.goal_text}: {verdict}"


@attrs.frozen
class Report:
    """One run of a benchmark."""

    benchmark: str
    """Its name; a newer report of the same name replaces an older one."""

    question: str
    """The question that it answers, in one sentence."""

    settings: Mapping[str, Any]
    """Options given, and choices that the benchmark made itself."""

    tables: tuple[Table, ...] = attrs.field(converter=_tables)
    thresholds: tuple[Threshold, ...] = attrs.field(default=(), converter=_thresholds)
    notes: tuple[str, ...] = attrs.field(default=(), converter=as_texts)
    """What a reader needs to interpret the tables; which peers were absent, and why."""

    curves: Curves | None = None
    bars: Bars | None = None
    results: Any = None
    """All measurements, as JSON."""

    machine: Mapping[str, Any] = attrs.field(factory=machine_facts)
    versions: Mapping[str, str] = attrs.field(factory=versions)
    date: str = attrs.field(factory=today)
    command: str = attrs.field(factory=lambda: command_line(sys.argv))

    @property
    def picture(self) -> Curves | Bars | None:
        """What is drawn beside the tables."""
        return self.curves or self.bars

    def text(self) -> str:
        """For a terminal."""
        parts = [self.question, self.header(), *(table.text() for table in self.tables)]
        parts += ["\n".join(map(str, lines)) for lines in (self.thresholds, self.notes) if lines]
        return "\n\n".join(parts)

    def header(self) -> str:
        """Machine, versions and settings, a line each."""
        machine = dict(self.machine)
        named = [machine.pop("device")]
        if machine.get("processor") == named[0]:
            machine.pop("processor")
        return "\n".join(
            ", ".join(line)
            for line in (
                [*named, *(f"{key.replace('_', ' ')} {value}" for key, value in machine.items())],
                [f"{name} {number}" for name, number in self.versions.items()],
                [f"{key.replace('_', ' ')} {_joined(value)}" for key, value in self.settings.items()],
                [self.date],
            )
            if line
        )

    def write(self, file: Path) -> None:
        """Write the report as JSON, in a folder that is made if it is not there."""
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, f"{json.dumps(attrs.asdict(self), indent=1)}\n".encode())

    @classmethod
    def read(cls, file: Path) -> "Report":
        """
        Read a report that :meth:`write` wrote.

        Raises:
            ValueError: *file* is not a report.
        """
        try:
            found = dict(json.loads(file.read_text()))
            tables = [Table(**table) for table in found.pop("tables")]
            thresholds = [Threshold(**threshold) for threshold in found.pop("thresholds")]
            curves, bars = found.pop("curves"), found.pop("bars", None)
            return cls(
                **found,
                tables=tables,
                thresholds=thresholds,
                curves=None if curves is None else Curves(**curves),
                bars=None if bars is None else Bars(**bars),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"'file' must be a benchmark's report: got {file}: {error}") from error


def finish(report: Report, file: Path | None = None, plot: Path | None = None) -> None:
    """
    Print *report*, and write it where asked.

    Args:
        report: With curves, if *plot* is given.

        file: Written as JSON.

        plot: Gets the curves; a missing matplotlib is reported, not raised.
    """
    print(report.text())
    if file is not None:
        report.write(file)
    if plot is not None and report.curves is not None:
        try:
            report.curves.plot(plot)
        except ImportError as error:
            print(f"No plot: {error}.")


def command_line(arguments: Sequence[str]) -> str:
    """
    The command as typed, without paths of this machine.

    >>> command_line(["/somewhere/decodekit/__main__.py", "bench", "start", "--cache", "/tmp/here"])
    'python -m decodekit bench start'
    """
    kept, rest = [], iter(arguments[1:])
    for argument in rest:
        flag, sign, _ = argument.partition("=")
        if flag not in (*_PATH_FLAGS, _CHECKOUT):
            kept.append(shlex.quote(argument))
            continue
        if not sign:
            next(rest, None)
        if flag == _CHECKOUT:
            kept += [_CHECKOUT, "."]
    return " ".join(["python -m decodekit", *kept])


_PATH_FLAGS = ("--json", "--plot", "--cache", "--peer-python", "--llama-server", "--llama-model")
"""Flags that name a place and do not change what is measured."""

_CHECKOUT = "--install"
"""It names a checkout, and what is measured is another thing without it."""


def _joined(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return " ".join(map(str, value))
    return str(value)
