"""Converters and validators of numbers and token ids."""

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs
import torch
from torch import Tensor

Validator: TypeAlias = Callable[[Any, "attrs.Attribute[Any]", Any], None]
"""A check that attrs runs at construction."""

LARGEST = 2**63 - 1
"""The largest whole number of a tensor."""


def as_list(value: Any) -> Any:
    """An array (torch or numpy) as Python numbers; anything else unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def as_several(value: Any) -> tuple[Any, ...]:
    """The elements of an array or an iterable; a string or a scalar as the only element."""
    values = as_list(value)
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else (values,)


def is_iterable(value: Any) -> bool:
    """Whether *value* has elements; a string counts, an array of no dimensions does not."""
    return isinstance(as_list(value), Iterable)


def is_whole(value: Any) -> bool:
    """Whether *value* is a Python or numpy integer; bool is not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def as_whole(value: Any) -> Any:
    """A numpy integer as a Python int; anything else unchanged, for a validator to refuse."""
    return int(value) if is_whole(value) else value


def as_tuple(name: str, values: Any) -> tuple[Any, ...]:
    """
    A sequence of numbers as a tuple.

    Raises:
        TypeError: *values* is not iterable. The message names it *name*.
    """
    if not is_iterable(values):
        raise TypeError(f"'{name}' must be a sequence of whole numbers: got {values!r}")
    return tuple(values)


def a_whole_number(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Check that a parameter is a whole number."""
    if not is_whole(value):
        raise TypeError(f"'{attribute.name}' must be a whole number: got {value!r}")


def as_real(value: Any) -> Any:
    """A Python or numpy number as a float; anything else unchanged, for a validator to refuse."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return as_float(value) if is_number else value


def as_float(value: Any) -> float:
    """A number as a float; an infinity where a whole number exceeds every finite one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def fits(value: int | Tensor) -> bool:
    """Whether a whole number is one of 64 bits; tensors are."""
    return isinstance(value, Tensor) or -LARGEST - 1 <= value <= LARGEST


def one_real(rule: str, holds: Callable[[float], bool]) -> Validator:
    """
    Check a real parameter.

    Args:
        rule: What the message says after "must be".

        holds: The rule; must be False for NaN.
    """

    def check(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not isinstance(value, float):
            raise TypeError(f"'{attribute.name}' must be a number: got {value!r}, a {type(value).__name__}")
        if not holds(value):
            raise ValueError(f"'{attribute.name}' must be {rule}: got {value!r}")

    return check


def counts(value: Any) -> Tensor:
    """A whole number *n* >= 1 as ``[1]``, or one per row as ``[rows]``."""
    values = as_list(value)
    found = list(values) if isinstance(values, Sequence) else [values]
    if not found or not all(map(is_whole, found)):
        raise TypeError(f"'n' must be a whole number or one for each row: got {value!r}")
    if min(found) < 1 or max(found) > LARGEST:
        raise ValueError(f"'n' must be at least 1, and fit into 64 bits: got {value!r}")
    return torch.tensor([int(number) for number in found])


def check_unicode(text: str) -> None:
    """
    Check that UTF-8 can write *text*, which is what tokenizers read.

    Raises:
        ValueError: It has half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a text must be writable in UTF-8: got {text!r:.80} ({error.reason})") from error


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """One token id or several as a tuple; *name* is the parameter's, for the error message."""
    ids = as_several(value)
    if not ids or not all(is_whole(i) for i in ids):
        raise TypeError(f"'{name}' must be a token id or several: got {value!r}")
    if min(ids) < 0 or max(ids) > LARGEST:
        raise ValueError(f"'{name}' must be >= 0, and fit into 64 bits: got {value!r}")
    return tuple(int(i) for i in ids)


def stream_numbers(random_streams: Any, rows: int) -> Tensor:
    """
    The numbers of the rows' random streams, ``[rows]``: 0, 1, 2, ... if *random_streams* is None.

    Raises:
        TypeError: Not whole numbers.

        ValueError: Not one for each row, or one that does not fit into 64 bits.
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
