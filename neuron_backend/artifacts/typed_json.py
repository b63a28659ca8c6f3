"""Checks of parsed JSON against the fields of an attrs class."""

import types
import typing
from typing import Any

import attrs


def check_fields(kind: type, facts: Any, where: str = "") -> None:
    """
    Check that *facts* are the fields of *kind*, each of its type.

    Args:
        kind: An attrs class.

        facts: Parsed JSON.

        where: Name of *facts* in messages.

    Raises:
        ValueError: A field is missing, unknown, or of another type; the message names it.
    """
    if not isinstance(facts, dict):
        raise ValueError(f"{where or 'the facts'} must be an object: got {facts!r}")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in attrs.fields(kind)}
    for name in facts.keys() - fields.keys():
        raise ValueError(f"{_path(where, name)} is unknown")
    for name, field in fields.items():
        if name in facts:
            _check(hints[name], facts[name], _path(where, name))
        elif field.default is attrs.NOTHING:
            raise ValueError(f"{_path(where, name)} is missing")


def _check(hint: Any, value: Any, where: str) -> None:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (one for one in arguments if one is not types.NoneType)
        if value is not None:
            _check(inner, value, where)
    elif attrs.has(hint):
        check_fields(hint, value, where)
    elif origin is dict:
        _require(isinstance(value, dict), "an object", value, where)
        for key, each in value.items():
            _check(arguments[1], each, _path(where, key))
    elif origin in (list, tuple):
        _require(isinstance(value, list), "a list", value, where)
        for each in value:
            _check(arguments[0], each, where)
    elif hint is int:
        _require(type(value) is int and value >= 0, "a whole number >= 0", value, where)
    elif hint is bool:
        _require(isinstance(value, bool), "true or false", value, where)
    elif hint is str:
        _require(isinstance(value, str), "a string", value, where)


def _require(holds: bool, rule: str, value: Any, where: str) -> None:
    if not holds:
        raise ValueError(f"{where} must be {rule}: got {value!r}")


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
