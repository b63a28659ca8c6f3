"""What a benchmark found, in one form for a terminal, a JSON file and a page."""

import json
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from .machine import machine_facts, today, versions


@attrs.frozen
class Spread:
    """Several measurements of one thing."""

    median: float
    lowest: float
    highest: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of *values*, at least one."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def scaled(self, factor: float) -> "Spread":
        """In another unit."""
        return Spread(self.median * factor, self.lowest * factor, self.highest * factor, self.count)

    def __str__(self) -> str:
        return f"{number(self.median)} ({number(self.lowest)}–{number(self.highest)})"


# A converter that is generic would lose the types of what it converts.
def _texts(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


def _rows(rows: Iterable[Iterable[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, rows))


def _tables(values: Iterable["Table"]) -> tuple["Table", ...]:
    return tuple(values)


def _bars(values: Iterable["Bar"]) -> tuple["Bar", ...]:
    return tuple(values)


@attrs.frozen
class Table:
    """Rows under names of columns."""

    title: str
    columns: tuple[str, ...] = attrs.field(converter=_texts)
    rows: tuple[tuple[Any, ...], ...] = attrs.field(converter=_rows)

    @rows.validator
    def _check(self, attribute: Any, rows: tuple[tuple[Any, ...], ...]) -> None:
        for row in rows:
            if len(row) != len(self.columns):
                raise ValueError(f"'rows' must have {len(self.columns)} cells each: got {row}")

    def text(self) -> str:
        """For a terminal: the first column to the left, the others to the right."""
        cells = [self.columns, *(tuple(map(cell, row)) for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in cells
        ]
        return "\n".join([self.title, *lines])

    def markdown(self) -> str:
        """For a page."""
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        rows = [self.columns, rule, *(tuple(map(cell, row)) for row in self.rows)]
        lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows]
        return "\n".join([f"**{self.title}**", "", *lines])


@attrs.frozen
class Curves:
    """Where a picture says more than a table."""

    title: str
    x_label: str
    y_label: str
    points: Mapping[str, Sequence[Sequence[float]]]
    """Name to pairs of x and y."""


@attrs.frozen
class Bar:
    """A goal, and where it stands."""

    what: str
    """One name for it; where it is missed, a reason may be given under that name."""

    value: float
    rule: Literal["<=", ">="]
    goal: float
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether *value* keeps the rule."""
        return self.value <= self.goal if self.rule == "<=" else self.value >= self.goal

    def __str__(self) -> str:
        verdict = "met" if self.met else "NOT MET"
        goal = f"{self.rule} {number(self.goal)}{self.unit}"
        return f"{self.what}: {number(self.value)}{self.unit}, goal {goal}: {verdict}"


@attrs.frozen
class Report:
    """One run of a benchmark."""

    benchmark: str
    """Its name: a report of the same name stands for a newer run."""

    question: str
    """What it answers, in a sentence."""

    settings: Mapping[str, Any]
    """What it was told, and what it chose itself."""

    tables: tuple[Table, ...] = attrs.field(converter=_tables)
    bars: tuple[Bar, ...] = attrs.field(default=(), converter=_bars)
    notes: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """What a reader has to know to read the tables; who was absent, and why."""

    curves: Curves | None = None
    results: Any = None
    """All measurements, as JSON has them."""

    machine: Mapping[str, Any] = attrs.field(factory=machine_facts)
    versions: Mapping[str, str] = attrs.field(factory=versions)
    date: str = attrs.field(factory=today)
    command: str = attrs.field(factory=lambda: command_line(sys.argv))

    def text(self) -> str:
        """For a terminal."""
        parts = [self.question, self.header(), *(table.text() for table in self.tables)]
        parts += ["\n".join(map(str, self.bars))] * bool(self.bars) + ["\n".join(self.notes)] * bool(
            self.notes
        )
        return "\n\n".join(parts)

    def header(self) -> str:
        """Machine, versions and settings."""
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
        """As JSON."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(attrs.asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, file: Path) -> "Report":
        """
        What :meth:`write` wrote.

        Raises:
            ValueError: *file* is no report.
        """
        try:
            found = json.loads(file.read_text())
            tables = [Table(**table) for table in found.pop("tables")]
            bars = [Bar(**bar) for bar in found.pop("bars")]
            curves = found.pop("curves")
            return cls(**found, tables=tables, bars=bars, curves=None if curves is None else Curves(**curves))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"'file' must be a benchmark's report: got {file}: {error}") from error


def finish(report: Report, file: Path | None = None, plot: Path | None = None) -> None:
    """
    Print *report*.

    Args:
        report: With curves, if there is a *plot*.

        file: Gets it as JSON.

        plot: Gets the curves, if matplotlib is installed; it is said if it is not.
    """
    print(report.text())
    if file is not None:
        report.write(file)
    if plot is not None and report.curves is not None:
        from .plot import plot_curves

        try:
            plot_curves(plot, report.curves)
        except ImportError as error:
            print(f"No plot: {error}.")


def command_line(arguments: Sequence[str]) -> str:
    """
    What was typed, but for where things lie on this machine.

    >>> command_line(["/somewhere/decodekit/__main__.py", "bench", "start", "--cache", "/tmp/here"])
    'python -m decodekit bench start'
    >>> command_line(["/somewhere/benchmarks/weights.py", "--texts", "4", "--json", "a b"])
    'python benchmarks/weights.py --texts 4'
    """
    path = Path(arguments[0]).absolute()
    program = f"benchmarks/{path.name}" if path.parent.name == "benchmarks" else "-m decodekit"
    kept, rest = [], iter(arguments[1:])
    for argument in rest:
        if argument in _PLACES:
            next(rest, None)
        else:
            kept.append(shlex.quote(argument))
    return " ".join(["python", program, *kept])


_PLACES = ("--json", "--plot", "--cache", "--peer-python")
"""Flags that say where something lies, and change nothing that is measured."""


def cell(value: Any) -> str:
    """A value in a table: None is a dash, a float has three digits that count."""
    if value is None:
        return "–"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """
    With about three digits that count.

    >>> number(0.01234), number(3.14159), number(13163.0), number(42.0)
    ('0.0123', '3.14', '13163', '42')
    """
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _joined(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return " ".join(map(str, value))
    return str(value)
