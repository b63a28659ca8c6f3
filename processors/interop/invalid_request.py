"""Refusals of requests."""

from collections.abc import Callable
from typing import Any, NoReturn

import attrs

from ...decoding.validation import Validator


class InvalidRequestError(ValueError):
    """A request that cannot be served. *parameter* is the field at fault; None for the whole body."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(_encodable(message))
        self.parameter = None if parameter is None else _encodable(parameter)


def _encodable(text: str) -> str:
    """*text* without what UTF-8 has no bytes for, and JSON may escape, in a field's name too."""
    return text.encode(errors="replace").decode()


def rule(*rules: Validator) -> Validator:
    """A validator that says in the error which field is at fault."""

    def check(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        try:
            for check_one in rules:
                check_one(instance, attribute, value)
        except (TypeError, ValueError) as error:
            # The further arguments of attrs' own errors are the attribute and the value.
            raise InvalidRequestError(str(error.args[0]), attribute.name) from error

    return check


def refuse(name: str, rule: str, value: Any, place: str = "") -> NoReturn:
    """Raise for the field *name*, where a *value*, at a *place* in it, breaks a rule."""
    raise InvalidRequestError(f"'{name}{place}' {rule}: got {value!r:.200}", name)


def checked(name: str, make: Callable[[], Any]) -> Any:
    """What *make* returns; its refusal as one of the field *name*."""
    try:
        return make()
    except (ImportError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"'{name}' is refused: {error}", name) from error
