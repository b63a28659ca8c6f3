"""Names of a JSON schema's objects, which other names must not spell again."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_GIVEN = ("properties", "patternProperties", "required")

_NEEDS_ESCAPES = re.compile(r"\\u00(0[0-7be-f]|1|7f)|\\\\[xucp]", re.IGNORECASE)
"""In the ASCII text of a schema: a control character without a letter, or a pattern that may ask for one."""


def names_are_spelled_once(schema: Any) -> bool:
    r"""
    Whether strings of *schema* are to be written without general escapes, and can be.

    An object with given names that is open to others could take a given name as another, ``"\u0061"`` for
    ``"a"``, with a value that is not that name's. Control characters can only be written by escapes.
    """
    if not any(_is_open(part) for part in mappings_of(schema)):
        return False
    try:
        return _NEEDS_ESCAPES.search(json.dumps(schema)) is None
    except (TypeError, ValueError):
        # The engine says what is no JSON.
        return False


def _is_open(schema: Mapping[Any, Any]) -> bool:
    return any(name in schema for name in _GIVEN) and schema.get("additionalProperties") is not False


def mappings_of(schema: Any) -> Iterator[Mapping[Any, Any]]:
    """All mappings within *schema*."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            yield part
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
