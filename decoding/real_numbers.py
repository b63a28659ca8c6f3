"""What counts as a real number, where all rows share one."""

import numbers
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

Validator: TypeAlias = Callable[[Any, "attrs.Attribute[Any]", Any], None]
"""A check that attrs runs at construction."""


def as_real(value: Any) -> Any:
    """A number of Python's or numpy's as a float; anything else as it is, for a validator to refuse."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return float(value) if is_number else value


def one_real(rule: str, holds: Callable[[float], bool]) -> Validator:
    """
    Check a real parameter.

    Args:
        rule: What the message says after "must be".

        holds: The rule. False for NaN.
    """

    def check(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not isinstance(value, float):
            raise TypeError(f"'{attribute.name}' must be a number: got {value!r}, a {type(value).__name__}")
        if not holds(value):
            raise ValueError(f"'{attribute.name}' must be {rule}: got {value!r}")

    return check
