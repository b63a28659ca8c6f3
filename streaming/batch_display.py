"""Several texts at once in a terminal."""

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
from .terminal_text import harmless, wrap

_TAB = "    "


@attrs.define(eq=False)
class _Row:
    """What one row has said."""

    pending: list[str] = attrs.field(factory=list)
    """Pieces that have not been printed for good."""

    printed: bool = False
    """Whether any line has."""

    newest: str = ""
    """The last lines of the text as they are shown."""

    ended: bool = False

    def push(self, text: str) -> None:
        self.pending.append(text)
        self.newest += text.replace("\t", _TAB)

    def newest_lines(self, count: int, width: int) -> list[str]:
        # The second half of a line break may come with the next event.
        text = self.newest.removesuffix("\r")
        broken = self.newest[len(text) :]
        lines = [
            piece for line in harmless(text.replace("\r\n", "\n")).split("\n") for piece in wrap(line, width)
        ][-count:]
        # What came before is shown no more, so a redrawing costs as much as it shows.
        self.newest = "\n".join(lines) + broken
        return lines

    def take_lines(self, last: bool) -> list[str]:
        """The lines that are complete, or all that is left; of a text without any, an empty one."""
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
    Show the texts of several rows while they grow.

    In a terminal, each row has a few lines with its newest text, redrawn in place, and when the
    generation ends they make room for the whole texts. Into anything else, each line is written
    when it is complete. Either way a line begins with its row: ``[0] ...``.

    What a text could do to a terminal is made harmless: escape sequences and control characters
    are shown as pictures (``␛[31m``). Long lines are cut by cells, of which wide characters and
    emoji take two and combining marks none. Rows for which the screen has no room are counted,
    those that have ended first. A terminal that becomes narrower may keep some old lines above the
    display, if it breaks them in two; what stood there before is never touched. The cursor stays
    visible, and nothing is coloured, so nothing has to be put right when a program dies.

    Needs a generator with a tokenizer.

    Args:
        file: Where to; None is whatever ``sys.stdout`` is at that time.

        lines: Of each row in a terminal, while the generation lasts; fewer if there is no room.

        interval: Seconds between two redrawings, at least. The last is never left out.

        clock: Seconds.

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
    # What is on the screen above the cursor: how many lines, and since when.
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
        """Write all that has not been written for good."""
        rest = [_labelled(number, row.take_lines(last=True)) for number, row in sorted(self._rows.items())]
        erase = f"{self._back(self._size().lines)}\x1b[J" if self._is_terminal() else ""
        self._rows, self._drawn, self._drawn_at = {}, 0, -math.inf
        self._write(erase + "".join(rest))

    def fail(self, error: BaseException) -> None:
        """Write how far the texts came."""
        self.end()

    def _draw(self) -> None:
        size = self._size()
        lines = self._layout(size.columns, size.lines)
        # Whatever the terminal's idea of a width, no line shall become two.
        body = "".join(f"\r\x1b[K{line}\n" for line in lines)
        self._write(f"\x1b[?7l{self._back(size.lines)}{body}\x1b[J\x1b[?7h")
        self._drawn, self._drawn_at = len(lines), self.clock()

    def _back(self, height: int) -> str:
        """Put the cursor before what was drawn, as far as it is on the screen."""
        up = min(self._drawn, height - 1)
        return f"\r\x1b[{up}A" if up > 0 else "\r"

    def _layout(self, columns: int, height: int) -> list[str]:
        # The cursor stands in the line below.
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
        # The last column stays free: some terminals go on to the next line from there at once.
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
        if encoding := getattr(file, "encoding", None):
            # What it cannot show is no reason to stop a generation.
            text = text.encode(encoding, "replace").decode(encoding)
        file.write(text)
        file.flush()


def _labelled(number: int, lines: list[str]) -> str:
    return "".join(f"[{number}] {line}\n" for line in lines)
