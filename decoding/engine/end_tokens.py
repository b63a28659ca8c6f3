"""The end of sequence that joins a stop condition."""

from typing import Any

import attrs

from ..protocols import StopCondition
from ..stopping.composition import AnyOf, parts
from ..stopping.end_of_sequence import EndOfSequence
from ..validation import is_whole, token_ids

AUTO = "auto"
"""The end of sequence of the tokenizer."""


def as_end_tokens(value: Any) -> Any:
    """Several ids as a tuple; anything else unchanged, for the validator."""
    return value if value is None or isinstance(value, str) or is_whole(value) else token_ids(_NAME, value)


_NAME = "end_of_sequence"


def end_tokens(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """
    Check that *value* is ``"auto"``, None, an id or several.

    Raises:
        TypeError: It is something else.

        ValueError: It is another string, or an id is negative.
    """
    if isinstance(value, str):
        if value != AUTO:
            raise ValueError(f"'{_NAME}' must be {AUTO!r}, None, an id or several: got {value!r}")
    elif value is not None:
        token_ids(_NAME, value)


def with_end_of_sequence(stop: StopCondition, ends: Any, tokenizer: Any) -> StopCondition:
    """
    *stop*, joined with an end of sequence unless it has one.

    Args:
        stop: The stop condition.

        ends: ``"auto"``, None, an id or several.

        tokenizer: It says what ``"auto"`` is, if it says anything.
    """
    if isinstance(ends, str):
        # A tokenizer need only decode and spell.
        ends = getattr(tokenizer, "eos_token_id", None)
    if ends is None or any(isinstance(part, EndOfSequence) for part in parts(stop)):
        return stop
    return AnyOf((EndOfSequence(ends), stop))
