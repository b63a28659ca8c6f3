"""
Progress of compiling and loading: what is being done, and the seconds that each stage took.

Every stage is logged under ``decodekit`` (its end at INFO, its beginning at DEBUG), and told to a
:data:`Progress`, which :mod:`.progress_option` chooses.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import attrs

_LOG = logging.getLogger(__name__)


@attrs.frozen
class Stage:
    """
    The beginning or the end of a stage of compiling or loading.

    >>> str(Stage("compiling width 5 of 1, 5, 64", number=2, of=3, seconds=4.14))
    'compiling width 5 of 1, 5, 64 … 4.1 s'
    """

    name: str
    """What is being done, such as ``"compiling width 5 of 1, 5, 64"``."""

    number: int = 1
    """Its number among the stages of its kind, from 1."""

    of: int = 1
    """The number of stages of its kind."""

    seconds: float | None = None
    """Seconds that it took; None when it begins."""

    failed: bool = False
    """Whether it ended in an exception."""

    note: str = ""
    """A remark at its end, such as that a program was compiled before."""

    def __str__(self) -> str:
        """One line."""
        if self.seconds is None:
            return f"{self.name} …"
        note = f", {self.note}" if self.note else ""
        return f"{self.name} … {'failed after ' if self.failed else ''}{self.seconds:.1f} s{note}"


Progress: TypeAlias = Callable[[Stage], None]
"""
Called when a stage begins and again when it ends, in the thread that works on it. Stages may lie within
others, and several may be open at once.
"""


class Silent:
    """A :data:`Progress` that shows nothing."""

    def __call__(self, stage: Stage) -> None:
        """Ignore *stage*."""


SILENT = Silent()
"""The shared instance."""


@contextmanager
def stage(progress: Progress, name: str, number: int = 1, of: int = 1) -> Iterator["Notes"]:
    """
    Tell *progress* and the log that the body is a stage; fields as of :class:`Stage`.

    Yields:
        Takes the note of the stage's end.
    """
    begun, notes = Stage(name, number, of), Notes()
    _LOG.debug("%s", begun)
    progress(begun)
    start, failed = time.perf_counter(), True
    try:
        yield notes
        failed = False
    finally:
        seconds = time.perf_counter() - start
        ended = attrs.evolve(begun, seconds=seconds, failed=failed, note=notes.text)
        _LOG.info("%s", ended)
        progress(ended)


@attrs.define
class Notes:
    """The note of a stage that is not over."""

    text: str = ""
    """See :attr:`Stage.note`."""
