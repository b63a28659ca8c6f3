"""
Processor parameters: one number, or one per row of the batch.

Converters turn accepted input into a Python number or a ``[batch]`` tensor and pass anything else
through; validators, which know the parameter's name, then raise.
"""

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import attrs
import torch
from torch import Tensor

from ..decoding.validation import (
    LARGEST,
    Validator,
    as_float,
    as_list,
    as_several,
    fits,
    is_iterable,
    is_whole,
)

Reals: TypeAlias = float | Sequence[float] | Tensor
"""Accepted input of a real parameter."""

Integers: TypeAlias = int | Sequence[int] | Tensor
"""Accepted input of an integer parameter."""

FLOAT32 = torch.finfo(torch.float32)

N = TypeVar("N", int, float)


def as_reals(value: Reals) -> float | Tensor:
    """
    Convert to a float, or to a new float64 tensor.

    float64 as Python's floats: a per-row parameter then rounds as the scalar does.
    """
    if isinstance(value, Tensor):
        known = value.is_floating_point() or _holds_integers(value)
        return value.detach().to(torch.float64, copy=True) if known else value
    return cast("float | Tensor", _converted(value, numbers.Real, as_float, torch.float64))


def as_integers(value: Integers) -> int | Tensor:
    """Convert to an int, or to a new int64 tensor."""
    if isinstance(value, Tensor):
        return value.detach().to(torch.int64, copy=True) if _holds_integers(value) else value
    return cast("int | Tensor", _converted(value, numbers.Integral, int, torch.int64))


def as_window(value: Integers | None) -> int | Tensor | None:
    """Convert a number of last tokens as :func:`as_integers`; None for all."""
    return None if value is None else as_integers(value)


def as_token_ids(value: int | Iterable[int] | Tensor) -> tuple[int, ...]:
    """Convert one or several token ids to a tuple, sorted and unique."""
    return tuple(sorted(set(as_token_sequence(value))))


def as_token_sequence(value: int | Iterable[int] | Tensor) -> tuple[int, ...]:
    """Convert one or several token ids to a tuple, in order."""
    ids = as_several(value)
    for token in ids:
        if not is_whole(token):
            raise TypeError(f"token ids must be integers: got {token!r}, a {type(token).__name__}")
        if token < 0:
            raise ValueError(f"token ids must be >= 0: got {token}")
        if token > LARGEST:
            raise ValueError(f"token ids must fit into 64 bits: got {token}")
    return tuple(int(token) for token in ids)


def as_token_sequences(values: Iterable[int | Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """Convert to unique sequences of token ids, in order; a single id is a sequence of one."""
    if not is_iterable(values) or isinstance(values, str):
        raise TypeError(f"token sequences must come in a list: got {values!r}, a {type(values).__name__}")
    sequences = tuple(dict.fromkeys(as_token_sequence(value) for value in values))
    if () in sequences:
        raise ValueError("a token sequence must hold at least one id: got an empty one")
    return sequences


def at_least_one(instance: Any, attribute: "attrs.Attribute[Any]", ids: tuple[int, ...]) -> None:
    """Check that *ids* is not empty."""
    if not ids:
        raise ValueError(f"'{attribute.name}' must name at least one token id: got none")


def real(rule: str, holds: Callable[[Any], Any]) -> Validator:
    """
    Validator of a real parameter, for each row.

    Args:
        rule: What the message says after "must be".

        holds: The rule for a float, or elementwise for a tensor. Must be False for NaN.
    """

    def check(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if isinstance(value, Tensor):
            _check_rows(attribute.name, value, "real numbers", value.is_floating_point())
        elif not isinstance(value, float):
            _refuse_type(attribute.name, value, "a number, or numbers one per row")
        _check_rule(attribute.name, value, rule, holds(value))
        # 1e39 is finite in Python and infinite in float32.
        _check_rule(attribute.name, value, "finite in float32", abs(value) <= FLOAT32.max)

    return check


def integer(rule: str, holds: Callable[[Any], Any]) -> Validator:
    """
    Validator of an integer parameter, for each row.

    Args:
        rule: What the message says after "must be".

        holds: The rule for an int, or elementwise for a tensor.
    """

    def check(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if isinstance(value, Tensor):
            _check_rows(attribute.name, value, "integers", _holds_integers(value))
        elif isinstance(value, Sequence) and not isinstance(value, str) and all(map(is_whole, value)):
            # The converter left them: they are of no tensor's.
            raise ValueError(f"{_fit(attribute.name)} in every row: got {value!r}")
        elif not is_whole(value):
            _refuse_type(attribute.name, value, "an integer, or integers one per row")
        _check_rule(attribute.name, value, rule, holds(value))
        _check_size(attribute.name, value)

    return check


def one_integer(rule: str, holds: Callable[[int], bool]) -> Validator:
    """
    Validator of an integer parameter that is one for all rows.

    Args:
        rule: What the message says after "must be".

        holds: The rule for an int.
    """

    def check(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not is_whole(value):
            _refuse_type(attribute.name, value, "an integer")
        _check_rule(attribute.name, value, rule, holds(value))
        _check_size(attribute.name, value)

    return check


_not_negative = integer(">= 0, or None for all", lambda value: value >= 0)


def a_window(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Check a number of last tokens."""
    if value is not None:
        _not_negative(instance, attribute, value)


_fade_length = integer(">= 0 (0 is off)", lambda fade: fade >= 0)


def a_fade(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Check the number of tokens beyond the window over which a penalty fades out."""
    _fade_length(instance, attribute, value)
    if not is_scalar(value, 0) and instance.window is None:
        raise ValueError(f"'{attribute.name}' must come with a 'window': got {value!r} without one")


def one_of(*values: object) -> Validator:
    """Validator of a parameter that is one of *values*."""
    rule = ", ".join(map(repr, values[:-1])) + f" or {values[-1]!r}"

    def check(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not any(value is known or (type(value) is type(known) and value == known) for known in values):
            raise ValueError(f"'{attribute.name}' must be {rule}: got {value!r}")

    return check


def a_bool(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Check that a parameter is True or False."""
    if not isinstance(value, bool):
        _refuse_type(attribute.name, value, "True or False")


def a_callable(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Check that a parameter can be called."""
    if not callable(value):
        _refuse_type(attribute.name, value, "callable")


def options_of(part: Any) -> dict[str, Any]:
    """Constructor arguments of *part* by name; empty if it is not an attrs instance."""
    if not attrs.has(type(part)):
        return {}
    return attrs.asdict(part, recurse=False, filter=lambda option, value: option.init)


def is_plain(value: object) -> bool:
    """Whether *value* consists of numbers, strings and None: no tensor, function or other object."""
    if isinstance(value, Mapping):
        return all(map(is_plain, (*value, *value.values())))
    if isinstance(value, tuple | list | frozenset | set):
        return all(map(is_plain, value))
    return value is None or isinstance(value, numbers.Number | str)


def is_scalar(parameter: float | Tensor | None, value: float) -> bool:
    """Whether *parameter* is one number for all rows and equals *value*."""
    return not isinstance(parameter, Tensor) and parameter == value


def per_row(name: str, parameter: N | Tensor, logits: Tensor) -> N | Tensor:
    """
    Make a parameter broadcastable to *logits*.

    Returns:
        A number unchanged; a ``[batch]`` tensor as ``[batch, 1, 1]``, in the logits' dtype if
        floating point.

    Raises:
        ValueError: The numbers of rows differ.
    """
    if not isinstance(parameter, Tensor):
        return parameter
    if parameter.shape[0] != logits.shape[0]:
        raise ValueError(
            f"'{name}' must have one value per row: got {parameter.shape[0]} for {logits.shape[0]} rows"
        )
    dtype = logits.dtype if parameter.is_floating_point() else parameter.dtype
    return parameter.to(logits.device, dtype)[:, None, None]


def index_of(ids: tuple[int, ...], logits: Tensor, index: Tensor) -> Tensor:
    """
    Index of the logits of *ids*.

    Args:
        ids: Token ids, at least one.

        logits: ``[batch, width, vocab]``.

        index: *ids* as a tensor ``[n]``.

    Returns:
        ``[batch, width, n]``, for ``gather`` and ``scatter`` along the vocabulary.

    Raises:
        ValueError: An id is outside the vocabulary.
    """
    batch, width, vocab = logits.shape
    check_ids(max(ids), vocab)
    return index.to(logits.device).expand(batch, width, -1)


def check_ids(largest: int, vocab: int) -> None:
    """
    Check the *largest* of a processor's token ids against the number of logits.

    Raises:
        ValueError: It is outside the vocabulary.
    """
    if largest >= vocab:
        raise ValueError(f"token ids must be < {vocab}, the size of the vocabulary: got {largest}")


def _converted(value: Any, kind: type, scalar: Callable[[Any], Any], dtype: torch.dtype) -> Any:
    value = as_list(value)  # numpy's scalars and arrays
    if _is_number(value, kind):
        return scalar(value)
    if isinstance(value, Sequence) and not isinstance(value, str) and all(_is_number(v, kind) for v in value):
        scalars = [scalar(v) for v in value]
        if dtype.is_floating_point or all(map(fits, scalars)):
            return torch.tensor(scalars, dtype=dtype)
    return value


def _is_number(value: Any, kind: type) -> bool:
    # bool is a subclass of int, but a mistake as a parameter.
    return isinstance(value, kind) and not isinstance(value, bool)


def _holds_integers(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def _check_rows(name: str, value: Tensor, kind: str, of_kind: bool) -> None:
    if not of_kind:
        raise TypeError(f"'{name}' must be a tensor of {kind}: got one of {value.dtype}")
    if value.dim() != 1 or value.numel() == 0:
        raise ValueError(f"'{name}' must be 1-D, one value per row: got shape {tuple(value.shape)}")


def _check_size(name: str, value: int | Tensor) -> None:
    if not fits(value):
        raise ValueError(f"{_fit(name)}: got {value!r}")


def _fit(name: str) -> str:
    return f"'{name}' must fit into 64 bits"


def _check_rule(name: str, value: float | Tensor, rule: str, held: bool | Tensor) -> None:
    if not isinstance(value, Tensor):
        if not held:
            raise ValueError(f"'{name}' must be {rule}: got {value!r}")
    elif not bool(torch.as_tensor(held).all()):
        raise ValueError(f"'{name}' must be {rule} in every row: got {value.tolist()}")


def _refuse_type(name: str, value: Any, rule: str) -> None:
    raise TypeError(f"'{name}' must be {rule}: got {value!r}, a {type(value).__name__}")
