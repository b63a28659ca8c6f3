"""Converters and validators of numbers and token ids, shared by all rooms."""

import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs
import torch
from torch import Tensor

Validator: TypeAlias = Callable[[Any, "attrs.Attribute[Any]", Any], None]
"""A check that attrs runs at construction."""


def as_list(value: Any) -> Any:
    """An array (torch or numpy) as numbers of Python's; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def as_several(value: Any) -> tuple[Any, ...]:
    """The elements of an array or an iterable; a string or a scalar as the only one."""
    values = as_list(value)
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else (values,)


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


def counts(value: Any) -> Tensor:
    """A whole number *n* of at least 1, or one a row, as ``[1]`` or ``[rows]``."""
    values = as_list(value)
    found = list(values) if isinstance(values, Sequence) else [values]
    if not found or not all(map(is_whole, found)):
        raise TypeError(f"'n' must be a whole number or one for each row: got {value!r}")
    if min(found) < 1:
        raise ValueError(f"'n' must be at least 1: got {value!r}")
    return torch.tensor([int(number) for number in found])


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """One token id or several; *name* is the parameter's, for the error."""
    ids = as_several(value)
    if not ids or not all(is_whole(i) for i in ids):
        raise TypeError(f"'{name}' must be a token id or several: got {value!r}")
    if min(ids) < 0:
        raise ValueError(f"'{name}' must be >= 0: got {value!r}")
    return tuple(int(i) for i in ids)


def stream_numbers(random_streams: Any, rows: int) -> Tensor:
    """
    The rows' random streams as a tensor ``[rows]``: 0, 1, 2, ... where *random_streams* is None.

    Raises:
        TypeError: Something else than whole numbers.

        ValueError: Not one for each row, or one that 64 bits do not hold.
    """
    if random_streams is None:
        return torch.arange(rows)
    found = as_list(random_streams)
    if not isinstance(found, Sequence) or not all(map(is_whole, found)):
        raise TypeError(f"'random_streams' must be whole numbers, one for each row: got {random_streams!r}")
    if len(found) != rows:
        raise ValueError(f"'random_streams' must be one number for each of the {rows} rows: got {len(found)}")
    if any(not -(2**63) <= number < 2**63 for number in found):
        raise ValueError(f"'random_streams' must fit into 64 bits: got {random_streams!r}")
    return torch.tensor([int(number) for number in found])
