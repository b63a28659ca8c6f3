"""Live display of several rows in a terminal."""

import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

import attrs
from attrs import validators

from ..decoding.results.events import Event
from ..decoding.validation import a_whole_number, as_real, one_real
from .encodable import encodable
from .terminal_text import harmless, wrap

_TAB = "    "


@attrs.define(eq=False)
class _Row:
    """Text of one row."""

    pending: list[str] = attrs.field(factory=list)
    """Pieces not yet printed permanently."""

    printed: bool = False
    """Whether any line has been printed permanently."""

    newest: str = ""
    """The last lines of the text, as displayed."""

    ended: bool = False

    def push(self, text: str) -> None:
        self.pending.append(text)
        self.newest += text.replace("\t", _TAB)

    def newest_lines(self, count: int, width: int) -> list[str]:
        # The second character of a CR LF may come with the next event.
        text = self.newest.removesuffix("\r")
        broken = self.newest[len(text) :]
        lines = [
            piece for line in harmless(text.replace("\r\n", "\n")).split("\n") for piece in wrap(line, width)
        ][-count:]
        # Only the displayed lines are kept, so redrawing costs no more than they do.
        self.newest = "\n".join(lines) + broken
        return lines

    def take_lines(self, last: bool) -> list[str]:
        """Complete lines; with *last* all that is left, at least one line per text."""
        *lines, rest = "".join(self.pending).split("\n")
        if last and (rest or not (lines or self.printed)):
            lines.append(rest)
            rest = ""
        self.pending = [rest]
        self.printed = self.printed or bool(lines)
        return [harmless(line.removesuffix("\r")) for line in lines]


@attrs.define(eq=False)
class BatchDisplay:
    r"""
    Display the texts of several rows as they grow.

    In a terminal, each row has a few lines with its newest text, redrawn in place; at the end of
    the generation they are replaced by the whole texts. In any other file, each line is written
    when complete. Each line begins with its row: ``[0] ...``.

    Escape sequences and control characters are shown as symbols (``␛[31m``). Long lines are wrapped
    by cells: wide characters and emoji take two, combining marks none. Rows that do not fit on the
    screen, finished ones first, are only counted. A terminal that becomes narrower may keep some
    wrapped old lines above the display; earlier output is never overwritten. The cursor stays
    visible and no colours are used, so a crash leaves the terminal usable.

    Needs a generator with a tokenizer.

    Args:
        file: Output file; None for ``sys.stdout`` at the time of writing.

        lines: Lines per row in a terminal during the generation; fewer if there is no room.

        interval: Minimum number of seconds between redraws. The last one is never skipped.

        clock: Returns the time in seconds.

    >>> display = BatchDisplay()
    >>> for row, text in [(0, "Hel"), (1, "Good\nbye"), (0, "lo\n")]:
    ...     display.put_event(Event(row, ids=(5,), text=text))
    [1] Good
    [0] Hello
    >>> display.end()
    [1] bye
    """

    file: TextIO | None = None
    lines: int = attrs.field(default=2, validator=[a_whole_number, validators.ge(1)])
    interval: float = attrs.field(
        default=0.05, converter=as_real, validator=one_real(">= 0", lambda seconds: seconds >= 0)
    )
    clock: Callable[[], float] = attrs.field(default=time.monotonic, repr=False)
    _rows: dict[int, _Row] = attrs.field(init=False, repr=False, factory=dict)
    # The display above the cursor: number of lines, and time of drawing.
    _drawn: int = attrs.field(init=False, repr=False, default=0)
    _drawn_at: float = attrs.field(init=False, repr=False, default=-math.inf)

    def begin(self, prompts: list[list[int]]) -> None:
        """Make room for the rows."""
        self._rows = {row: _Row() for row in range(len(prompts))}
        if self._is_terminal():
            self._draw()

    def put_event(self, event: Event) -> None:
        """Show what the event adds."""
        if event.text is None:
            raise ValueError(
                "this streamer shows text, and the event has none: pass tokenizer= to the Generator"
            )
        row = self._rows.setdefault(event.row, _Row())
        row.push(event.text)
        row.ended = event.finish is not None
        if not self._is_terminal():
            self._write(_labelled(event.row, row.take_lines(last=row.ended)))
        elif self.clock() - self._drawn_at >= self.interval:
            self._draw()

    def end(self) -> None:
        """Write all remaining text permanently."""
        rest = [_labelled(number, row.take_lines(last=True)) for number, row in sorted(self._rows.items())]
        erase = f"{self._back(self._size().lines)}\x1b[J" if self._is_terminal() else ""
        self._rows, self._drawn, self._drawn_at = {}, 0, -math.inf
        self._write(erase + "".join(rest))

    def fail(self, error: BaseException) -> None:
        """Write the texts so far."""
        self.end()

    def _draw(self) -> None:
        size = self._size()
        lines = self._layout(size.columns, size.lines)
        # Wrapping is off while drawing, in case the terminal's width differs.
        body = "".join(f"\r\x1b[K{line}\n" for line in lines)
        self._write(f"\x1b[?7l{self._back(size.lines)}{body}\x1b[J\x1b[?7h")
        self._drawn, self._drawn_at = len(lines), self.clock()

    def _back(self, height: int) -> str:
        """Sequence that moves the cursor to the start of the display, if on screen."""
        up = min(self._drawn, height - 1)
        return f"\r\x1b[{up}A" if up > 0 else "\r"

    def _layout(self, columns: int, height: int) -> list[str]:
        # The cursor is on the line below.
        room = max(1, height - 1)
        numbers = sorted(self._rows)
        if len(numbers) > room:
            room -= 1
            running_first = sorted(numbers, key=lambda number: self._rows[number].ended)
            numbers = sorted(running_first[:room])
        count = min(self.lines, max(1, room // max(1, len(numbers))))
        lines = [line for number in numbers for line in self._row_lines(number, count, columns)]
        if hidden := len(self._rows) - len(numbers):
            lines.append(f"... {hidden} more rows"[: columns - 1])
        return lines

    def _row_lines(self, number: int, count: int, columns: int) -> list[str]:
        label = f"[{number}] "
        # The last column stays free: some terminals wrap as soon as it is filled.
        width = max(2, columns - 1 - len(label))
        first, *others = self._rows[number].newest_lines(count, width)
        return [label + first, *(" " * len(label) + line for line in others)]

    def _size(self) -> os.terminal_size:
        try:
            size = os.get_terminal_size(self._file().fileno())
        except (AttributeError, OSError, ValueError):
            size = os.terminal_size((0, 0))
        return size if size.columns and size.lines else shutil.get_terminal_size()

    def _is_terminal(self) -> bool:
        isatty = getattr(self._file(), "isatty", None)
        return isatty is not None and isatty() and os.environ.get("TERM") != "dumb"

    def _file(self) -> TextIO:
        return sys.stdout if self.file is None else self.file

    def _write(self, text: str) -> None:
        if not text:
            return
        file = self._file()
        file.write(encodable(text, file))
        file.flush()


def _labelled(number: int, lines: list[str]) -> str:
    return "".join(f"[{number}] {line}\n" for line in lines)
