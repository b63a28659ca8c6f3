"""Whether what is refused is refused in clear words."""

import pathlib
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import decodekit

from .campaign import TookTooLong

PACKAGE = pathlib.Path(decodekit.__file__).parent


def is_ours(error: BaseException) -> bool:
    """Whether *error* is in words of ours or of attrs, not those of an operation on a wrong value."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    path = pathlib.Path(last.filename)
    own = PACKAGE in path.parents and (last.line or "").startswith("raise")
    return own or path.parts[-2:] == ("attr", "validators.py")


def made_or_refused(
    name: str, call: Callable[[], Any], given: Any, documented: tuple[type[Exception], ...] = ()
) -> str:
    """
    Call, and say whether that was refused by a TypeError or a ValueError of ours.

    Args:
        name: What is called, for the finding.

        call: Calls it.

        given: Its arguments, for the finding.

        documented: Other exceptions of ours that it may raise.

    Raises:
        AssertionError: Any other exception.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except (Exception, TookTooLong) as error:
        if isinstance(error, (TypeError, ValueError, *documented)) and is_ours(error):
            return "refused"
        words = f"{name}, {type(error).__name__} in no words of ours, of {given}: {error}"
        raise AssertionError(words) from error
    return "made"
