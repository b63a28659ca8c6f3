"""Tables of measurements, for a terminal and for Markdown."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import attrs


@attrs.frozen
class Spread:
    """Median and range of several measurements of one quantity."""

    median: float
    lowest: float
    highest: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of *values*, at least one."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    @classmethod
    def stored(cls, median: float, bounds: Sequence[float], count: int) -> "Spread":
        """A spread whose lowest and highest value were stored as *bounds*."""
        lowest, highest = bounds
        return cls(median, lowest, highest, count)

    def scaled(self, factor: float) -> "Spread":
        """The spread in another unit."""
        return Spread(self.median * factor, self.lowest * factor, self.highest * factor, self.count)

    def __str__(self) -> str:
        return f"{number(self.median)} ({number(self.lowest)}–{number(self.highest)})"


# A generic converter would lose the element types under mypy.
def as_texts(values: Iterable[str]) -> tuple[str, ...]:
    """*values* as a tuple."""
    return tuple(values)


def _rows(rows: Iterable[Iterable[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, rows))


@attrs.frozen
class Table:
    """Rows under column names."""

    title: str
    columns: tuple[str, ...] = attrs.field(converter=as_texts)
    rows: tuple[tuple[Any, ...], ...] = attrs.field(converter=_rows)

    @rows.validator
    def _check(self, attribute: Any, rows: tuple[tuple[Any, ...], ...]) -> None:
        for row in rows:
            if len(row) != len(self.columns):
                raise ValueError(f"'rows' must have {len(self.columns)} cells each: got {row}")

    def text(self) -> str:
        """For a terminal: the first column left-aligned, the others right-aligned."""
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
        return "\n".join([f"**{self.title}**", "", *map(markdown_row, rows)])


def markdown_row(cells: Iterable[str]) -> str:
    """A row of a Markdown table, with ``|`` escaped."""
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def cell(value: Any) -> str:
    """A value in a table: None is a dash, a float has three significant digits."""
    if value is None:
        return "–"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """
    A number with about three significant digits.

    >>> number(0.01234), number(3.14159), number(13163.0), number(42.0)
    ('0.0123', '3.14', '13163', '42')
    """
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
