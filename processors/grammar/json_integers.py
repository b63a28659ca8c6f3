"""Integers of a JSON schema that an engine would round."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from .json_names import mappings_of

_MOST = 2**63
"""From this magnitude on llguidance is wrong: 2^63 is written as a float, and -2^63 ends the process."""

_NEXT = {"exclusiveMinimum": 1, "exclusiveMaximum": -1}
"""From an exclusive bound to the integer that llguidance compares with."""

# A limit of a length, such as maxItems, is more than any text has, also if it is rounded.
_BOUNDS = frozenset(
    (
        *("minimum", "maximum", *_NEXT, "multipleOf"),
        *("minLength", "minItems", "minContains", "minProperties"),
    )
)
_VALUES = frozenset(("const", "enum"))
_ANNOTATIONS = frozenset(("default", "example", "examples"))
_BY_NAME = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))


def check_integers(schema: Any) -> None:
    """
    Refuse integers in *schema* that would be rounded.

    llguidance reads numbers as float64, which represents every integer up to 2^53 in magnitude (RFC 8259,
    section 6), and of the larger ones those that are a multiple of a power of two.

    Args:
        schema: A JSON schema of Python values. Annotations, such as ``default``, are ignored.

    Raises:
        ValueError: A constant or a bound is not exact as float64, or has a magnitude of 2^63 or more; or the
            integer next to an exclusive bound.
    """
    try:
        found = next(_rounded_in_all(schema), None)
    except RecursionError:
        raise ValueError("'schema' must not be nested more deeply than Python recurses") from None
    if found is not None:
        path, value = found
        raise ValueError(
            "'schema' must have integers that float64 holds exactly, below 2**63 in magnitude, others are "
            f"rounded: got {value} at {path!r}"
        )


def _rounded_in_all(schema: Any) -> Iterator[tuple[str, int]]:
    yield from _rounded_in_schema(schema, "#")
    # A reference makes a schema of what it leads to, be it an annotation or a table of names.
    for pointer in sorted(set(_pointers(schema))):
        yield from _rounded_in_schema(_at(schema, pointer), f"#{pointer}")


def _pointers(schema: Any) -> Iterator[str]:
    """The JSON pointers of the references in *schema*, to it or to what has an address of its own."""
    for part in mappings_of(schema):
        reference = part.get("$ref")
        if isinstance(reference, str):
            yield unquote(reference.partition("#")[2])


def _at(schema: Any, pointer: str) -> Any:
    """What *pointer* leads to in *schema*; None if there is nothing."""
    for name in pointer.split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping):
            schema = schema.get(key)
        elif isinstance(schema, list | tuple) and key.isdecimal() and int(key) < len(schema):
            schema = schema[int(key)]
        else:
            return None
    return schema


def _rounded_in_schema(schema: Any, path: str) -> Iterator[tuple[str, int]]:
    """JSON pointers and values of the integers that *schema* compares with and the engine rounds."""
    if isinstance(schema, list | tuple):
        for index, part in enumerate(schema):
            yield from _rounded_in_schema(part, f"{path}/{index}")
    elif isinstance(schema, Mapping):
        for keyword, value in schema.items():
            below = f"{path}/{_escaped(keyword)}"
            if keyword in _VALUES or (keyword in _BOUNDS and not isinstance(value, Mapping)):
                yield from _rounded_in_value(value, below, _next_one(keyword, schema))
            elif keyword in _BY_NAME and isinstance(value, Mapping):
                for name, part in value.items():
                    yield from _rounded_in_schema(part, f"{below}/{_escaped(name)}")
            elif keyword not in _ANNOTATIONS:
                yield from _rounded_in_schema(value, below)


def _next_one(keyword: str, schema: Mapping[Any, Any]) -> int:
    """What leads from the bound *keyword* of *schema* to the integer that the engine compares with."""
    # Draft 4 says with a boolean that a bound is exclusive.
    draft_4 = f"exclusive{keyword.capitalize()}"
    return _NEXT[draft_4] if schema.get(draft_4) is True else _NEXT.get(keyword, 0)


def _rounded_in_value(value: Any, path: str, next_one: int = 0) -> Iterator[tuple[str, int]]:
    """The same of a JSON *value*; *next_one* leads from it to another that must be exact too."""
    # A float without a fraction is an integer (JSON Schema, Core 6.3); bounds are cut to 64 bits.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int):
        if not (_is_exact(value) and _is_exact(value + next_one)):
            yield path, value
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _rounded_in_value(part, f"{path}/{index}")
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _rounded_in_value(part, f"{path}/{_escaped(name)}")


def _is_exact(value: int) -> bool:
    return abs(value) < _MOST and int(float(value)) == value


def _escaped(name: Any) -> str:
    # RFC 6901, section 3.
    return str(name).replace("~", "~0").replace("/", "~1")
