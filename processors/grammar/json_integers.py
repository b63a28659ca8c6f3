"""Integers of a JSON schema that an engine would round."""

from collections.abc import Iterator, Mapping
from typing import Any

LARGEST_INTEGER = 2**53
"""llguidance reads numbers as float64, which represents every integer up to this magnitude (RFC 8259, 6)."""

_BOUNDS = frozenset(
    (
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"),
        *("minProperties", "maxProperties"),
    )
)
_VALUES = frozenset(("const", "enum"))
_ANNOTATIONS = frozenset(("default", "example", "examples"))
_BY_NAME = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))


def check_integers(schema: Any) -> None:
    """
    Refuse integers in *schema* that would be rounded.

    Args:
        schema: A JSON schema of Python values. Annotations, such as ``default``, are ignored.

    Raises:
        ValueError: A constant, a bound or a length exceeds 2^53 in magnitude.
    """
    try:
        found = next(_large_in_schema(schema, "#"), None)
    except RecursionError:
        raise ValueError("'schema' must not be nested more deeply than Python recurses") from None
    if found is not None:
        path, value = found
        raise ValueError(
            f"'schema' must have integers from -2**53 to 2**53, others are rounded: got {value} at {path!r}"
        )


def _large_in_schema(schema: Any, path: str) -> Iterator[tuple[str, int]]:
    """JSON pointers and values of the integers beyond the bound that *schema* compares with."""
    if isinstance(schema, list | tuple):
        for index, part in enumerate(schema):
            yield from _large_in_schema(part, f"{path}/{index}")
    elif isinstance(schema, Mapping):
        for keyword, value in schema.items():
            below = f"{path}/{_escaped(keyword)}"
            if keyword in _VALUES or (keyword in _BOUNDS and not isinstance(value, Mapping)):
                yield from _large_in_value(value, below)
            elif keyword in _BY_NAME and isinstance(value, Mapping):
                for name, part in value.items():
                    yield from _large_in_schema(part, f"{below}/{_escaped(name)}")
            elif keyword not in _ANNOTATIONS:
                yield from _large_in_schema(value, below)


def _large_in_value(value: Any, path: str) -> Iterator[tuple[str, int]]:
    """The same of a JSON *value*."""
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        yield path, value
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _large_in_value(part, f"{path}/{index}")
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _large_in_value(part, f"{path}/{_escaped(name)}")


def _escaped(name: Any) -> str:
    # RFC 6901, section 3.
    return str(name).replace("~", "~0").replace("/", "~1")
