"""A pseudo-terminal, and a model of its screen."""

import fcntl
import os
import pty
import re
import struct
import termios
import threading
import tty
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

PATIENCE = 10.0
MARK = b"\x05"
"""Written behind what is waited for; a terminal shows nothing for it."""

PART = re.compile(r"\x1b\[(\??)([0-9]*)([A-Za-z])|(.)", re.DOTALL)


class Screen:
    """
    As much of a terminal as streamers may use.

    What they may not use fails: other control characters, other sequences, going up beyond the
    top of what was written.
    """

    def __init__(self, columns: int, lines: int, joined: bool = False, reflows: bool = False) -> None:
        self.columns, self.height = columns, lines
        self.joined, self.reflows = joined, reflows
        self.above: list[str] = []
        self.grid: list[list[str]] = [[]]
        self.row = self.column = 0
        self.wraps, self.shows_cursor = True, True
        self.wrapped = 0

    @property
    def text(self) -> list[str]:
        """Every line that can be seen or scrolled back to, without blank ends."""
        return [*self.above, *("".join(line).rstrip() for line in self.grid)]

    def feed(self, text: str) -> None:
        for private, number, letter, character in PART.findall(text):
            if character:
                self._put(character)
            else:
                self._order(private, int(number or 1) if letter in "AB" else int(number or 0), letter)

    def resize(self, columns: int, lines: int) -> None:
        self.columns, self.height = columns, lines
        if self.reflows:
            grid: list[list[str]] = []
            for line in self.grid:
                grid += [line[i : i + columns] for i in range(0, len(line), columns)] or [[]]
            self.row += len(grid) - len(self.grid)
            self.grid = grid
        else:
            self.grid = [line[:columns] for line in self.grid]
        self._scroll()

    def _order(self, private: str, number: int, letter: str) -> None:
        if (private, letter) == ("", "A"):
            assert number <= self.row, "the cursor goes up beyond the top"
            self.row -= number
        elif (private, number, letter) == ("", 0, "K"):
            del self.grid[self.row][self.column :]
        elif (private, number, letter) == ("", 0, "J"):
            del self.grid[self.row][self.column :]
            del self.grid[self.row + 1 :]
        elif (private, number) == ("?", 7):
            self.wraps = {"h": True, "l": False}[letter]
        elif (private, number) == ("?", 25):
            self.shows_cursor = {"h": True, "l": False}[letter]
        else:
            raise AssertionError(f"an unknown sequence: {private}{number}{letter}")

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\t":
            self.column = min(self.column // 8 * 8 + 8, self.columns - 1)
        elif character == "\n":
            self.row += 1
            if self.row == len(self.grid):
                self.grid.append([])
            self._scroll()
        else:
            assert not unicodedata.category(character).startswith("Cc"), repr(character)
            self._show(character)

    def _show(self, character: str) -> None:
        width, line = self._width(character), self.grid[self.row]
        line += [" "] * (self.column - len(line))
        if width == 0:
            before = self.column - 1
            while before > 0 and line[before] == "":
                before -= 1
            if before >= 0:
                line[before] += character
            return
        if self.column + width > self.columns:
            if self.wraps:
                self.wrapped += 1
                self._put("\r")
                self._put("\n")
                line = self.grid[self.row]
            else:
                self.column = self.columns - width
        # The second cell of a wide character is empty.
        line[self.column : self.column + width] = [character] + [""] * (width - 1)
        self.column += width

    def _width(self, character: str) -> int:
        if unicodedata.category(character) in ("Mn", "Me", "Cf"):
            return 0
        if self.joined and self.column:
            line = self.grid[self.row][: self.column]
            before = next((cell for cell in reversed(line) if cell), "")
            if before.endswith("\u200d") or "\U0001f3fb" <= character <= "\U0001f3ff":
                return 0
        return 2 if unicodedata.east_asian_width(character) in "WF" else 1

    def _scroll(self) -> None:
        while len(self.grid) > self.height:
            self.above.append("".join(self.grid.pop(0)).rstrip())
            self.row -= 1


class Terminal:
    """Both sides of a pseudo-terminal."""

    def __init__(self, columns: int, lines: int, **options: bool) -> None:
        self.screen = Screen(columns, lines, **options)
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        # As a shell leaves it: a newline goes to the beginning of the next line.
        modes = termios.tcgetattr(self._slave)
        modes[1] |= termios.OPOST | termios.ONLCR
        termios.tcsetattr(self._slave, termios.TCSANOW, modes)
        self._set_size(columns, lines)
        self.file: TextIO = os.fdopen(os.dup(self._slave), "w", encoding="utf-8")
        self._received, self._change = bytearray(), threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns: int, lines: int) -> None:
        self.show()
        self._set_size(columns, lines)
        self.screen.resize(columns, lines)

    def received(self) -> str:
        """What has come since the last look."""
        os.write(self._slave, MARK)
        with self._change:
            assert self._change.wait_for(lambda: self._received.endswith(MARK), PATIENCE)
            text = bytes(self._received[: -len(MARK)]).decode()
            self._received.clear()
        return text

    def show(self) -> Screen:
        """The screen as it is now."""
        self.screen.feed(self.received())
        return self.screen

    def close(self) -> None:
        self.file.close()
        os.close(self._slave)
        self._reader.join(PATIENCE)
        os.close(self._master)

        assert not self._reader.is_alive()

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other side is closed
                return
            with self._change:
                self._received += data
                self._change.notify_all()


@contextmanager
def terminal(columns: int = 40, lines: int = 12, **options: bool) -> Iterator[Terminal]:
    one = Terminal(columns, lines, **options)
    try:
        yield one
    finally:
        one.close()
