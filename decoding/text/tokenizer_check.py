"""Validation of a tokenizer."""

from typing import Any

import attrs


def a_tokenizer(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Attrs validator: *value* must have the methods of a :class:`~.tokenizer.Tokenizer`."""
    try:
        needed = ("decode", "convert_ids_to_tokens")
        lacked = [name for name in needed if not callable(getattr(value, name, None))]
    except Exception:
        # A tokenizer that fails says so itself, when it is used.
        return
    if lacked:
        raise TypeError(
            "'tokenizer' must have the methods decode and convert_ids_to_tokens, as those of transformers: "
            f"got {value!r} without {lacked[0]}"
        )
