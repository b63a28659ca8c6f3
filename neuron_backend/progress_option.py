"""The *progress* of public functions: the caller's own, a line in the terminal, or silence."""

import logging
import os
import sys
from typing import Any, Literal, TypeAlias

from . import progress
from .progress import SILENT, Progress
from .terminal_progress import TerminalProgress

ProgressOption: TypeAlias = Progress | Literal[False] | None
"""
A :data:`~.progress.Progress`; False for silence; None for a line on stderr if that is a terminal and the log
does not show the stages, else silence.
"""


def progress_of(option: ProgressOption) -> Progress:
    """
    The :data:`~.progress.Progress` that *option* stands for.

    Raises:
        TypeError: *option* is neither None, nor False, nor callable.
    """
    if option is None:
        return TerminalProgress(sys.stderr) if _may_show() else SILENT
    if option is False:
        return SILENT
    if not callable(option):
        raise TypeError(f"'progress' must be None, False or a callable: got {option!r}")
    return option


def _may_show() -> bool:
    stream: Any = sys.stderr
    # Under torchrun every rank has the same terminal.
    first = os.environ.get("RANK", "0") == "0"
    # The log shows the same lines.
    logged = logging.getLogger(progress.__name__).isEnabledFor(logging.INFO)
    return first and not logged and stream is not None and bool(stream.isatty())
