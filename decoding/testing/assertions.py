"""The assertions of the contract checks."""

from collections.abc import Callable, Sequence


def require(holds: bool, message: str) -> None:
    """Raise ``AssertionError`` with *message* unless it *holds*."""
    # Not an assert statement, which ``python -O`` removes.
    if not holds:
        raise AssertionError(message)


def require_refusal(name: str, error: type[Exception], call: Callable[[], object]) -> None:
    """Raise ``AssertionError`` unless *call* raises *error*."""
    try:
        call()
    except error:
        return
    except Exception as other:
        raise AssertionError(f"{name} must raise {error.__name__}: {other!r}") from other
    raise AssertionError(f"{name} must be refused")


def unknown_width(widths: Sequence[int]) -> int:
    """The smallest number of columns that is none of *widths*."""
    return next(width for width in range(1, widths[-1] + 2) if width not in widths)
