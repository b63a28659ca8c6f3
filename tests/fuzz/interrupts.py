"""Interrupts at chosen places, where the interpreter looks for signals."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import decodekit

_PLACES = (str(Path(decodekit.__file__).parent), threading.__file__)
_TESTS = str(Path(__file__).parent)


def interrupted_at(number: int, function: Callable[[], None]) -> bool:
    """
    Call *function*, and raise KeyboardInterrupt in it where it is interrupted for the time *number*.

    The interpreter raises it where a Python function begins and where a call of another function has
    ended; the hook of profilers is called there too. Places in decodekit and in ``threading`` count.

    Returns:
        Whether the function ended before.
    """
    left = number

    def at_event(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        name = frame.f_code.co_filename
        if event in ("call", "c_return") and name.startswith(_PLACES) and not name.startswith(_TESTS):
            left -= 1
            if not left:
                sys.setprofile(None)
                raise KeyboardInterrupt

    # An interrupt in a finaliser is only reported.
    reported = sys.unraisablehook
    sys.unraisablehook = lambda report: None if report.exc_type is KeyboardInterrupt else reported(report)
    sys.setprofile(at_event)
    try:
        function()
    except KeyboardInterrupt:
        return False
    except RuntimeError as error:
        # What threading's Condition makes of an interrupt as it begins to wait.
        if "cannot release un-acquired lock" != str(error):
            raise
        return False
    finally:
        sys.setprofile(None)
        sys.unraisablehook = reported
    return True
