"""Stages as a line in a terminal that is rewritten, with a bar where there are several of a kind."""

import shutil
import threading
from typing import TextIO

import attrs

from .progress import Stage

KEPT_SECONDS = 2.0
"""The lines of stages that took at least so long stay in the terminal; the others are overwritten."""

_BAR = 12


@attrs.define(eq=False)
class TerminalProgress:
    """Shows the newest stage that is not over, and keeps the lines of long and of failed ones."""

    stream: TextIO

    _open: list[Stage] = attrs.field(factory=list, init=False)
    _shown: int = attrs.field(default=0, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)

    def __call__(self, stage: Stage) -> None:
        """Show that *stage* begins or ends."""
        with self._lock:
            if stage.seconds is None:
                self._open.append(stage)
            else:
                self._open.remove(attrs.evolve(stage, seconds=None, failed=False, note=""))
                if stage.failed or stage.seconds >= KEPT_SECONDS:
                    self._rewrite(str(stage))
                    self.stream.write("\n")
                    self._shown = 0
            self._rewrite(_line(self._open[-1]) if self._open else "")
            self.stream.flush()

    def _rewrite(self, text: str) -> None:
        # One column less than there are: a terminal may break a full line.
        text = text[: max(shutil.get_terminal_size().columns - 1, 1)]
        if text or self._shown:
            self.stream.write(f"\r{text.ljust(self._shown)}")
            # Whatever else is printed begins at the left of an empty line.
            self.stream.write("" if text else "\r")
        self._shown = len(text)


def _line(stage: Stage) -> str:
    """The line of a stage that is not over, with a bar of those that are."""
    if stage.of == 1:
        return str(stage)
    done = _BAR * (stage.number - 1) // stage.of
    return f"[{'#' * done}{'-' * (_BAR - done)}] {stage}"
