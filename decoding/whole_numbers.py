"""What counts as a whole number, of ids, lengths and streams alike."""

import numbers
from collections.abc import Iterable
from typing import Any

import attrs


def is_whole(value: Any) -> bool:
    """Whether *value* is an integer of Python's or numpy's. True and False are a mistake, not 1 and 0."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def as_whole(value: Any) -> Any:
    """A whole number of numpy's as one of Python's; anything else as it is, for a validator to refuse."""
    return int(value) if is_whole(value) else value


def as_tuple(name: str, values: Any) -> tuple[Any, ...]:
    """
    A sequence of numbers as a tuple.

    Raises:
        TypeError: *values* cannot be iterated over. The message calls them *name*.
    """
    if not isinstance(values, Iterable):
        raise TypeError(f"'{name}' must be a sequence of whole numbers: got {values!r}")
    return tuple(values)


def a_whole_number(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Check that a parameter is one."""
    if not is_whole(value):
        raise TypeError(f"'{attribute.name}' must be a whole number: got {value!r}")
