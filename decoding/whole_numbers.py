"""What counts as a whole number, of ids, lengths and streams alike."""

import numbers
from typing import Any

import attrs


def is_whole(value: Any) -> bool:
    """Whether *value* is an integer of Python's or numpy's. True and False are a mistake, not 1 and 0."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def as_whole(value: Any) -> Any:
    """A whole number of numpy's as one of Python's; anything else as it is, for a validator to refuse."""
    return int(value) if is_whole(value) else value


def a_whole_number(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Check that a parameter is one."""
    if not is_whole(value):
        raise TypeError(f"'{attribute.name}' must be a whole number: got {value!r}")
