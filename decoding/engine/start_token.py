"""The token that begins a text without a prompt."""

from typing import Any

import attrs

from ..validation import is_whole
from .end_tokens import AUTO


def a_start_token(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """
    Check that *value* is ``"auto"``, None or an id.

    Raises:
        TypeError: It is something else.

        ValueError: It is another string, or negative.
    """
    rule = f"'{attribute.name}' must be {AUTO!r}, None or an id"
    if isinstance(value, str):
        if value != AUTO:
            raise ValueError(f"{rule}: got {value!r}")
    elif value is not None:
        if not is_whole(value):
            raise TypeError(f"{rule}: got {value!r}")
        if value < 0:
            raise ValueError(f"{rule} >= 0: got {value!r}")


def start_token(start: Any, tokenizer: Any) -> int | None:
    """*start*, or for ``"auto"`` what *tokenizer* says; None if it says nothing."""
    if isinstance(start, str):
        # A tokenizer need only decode.
        start = getattr(tokenizer, "bos_token_id", None)
    return None if start is None else int(start)
