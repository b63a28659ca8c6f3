"""The messages of a chat completion request."""

from collections.abc import Mapping, Sequence
from typing import Any

from .invalid_request import refuse

_ROLES = {"assistant": "assistant", "developer": "system", "system": "system", "user": "user"}
"""Each role of the API, to that of chat templates."""


def as_messages(messages: Any) -> list[dict[str, str]]:
    """
    Messages in the form of chat templates.

    A content of several text parts is joined. Fields that are null or empty are left out, so that answers of
    the API can be sent back as they are.

    Raises:
        InvalidRequestError: There is none, or one has another role, further fields, or a content that is not
            text, such as an image.

    >>> as_messages([{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}])
    [{'role': 'system', 'content': 'Be brief.'}]
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        refuse("messages", "must be a list of one or more", messages)
    return [_as_message(message, f"[{number}]") for number, message in enumerate(messages)]


def _as_message(message: Any, place: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        refuse("messages", "must be objects with 'role' and 'content'", message, place)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        refuse("messages", f"must have a 'role' of {', '.join(sorted(_ROLES))}", role, place)
    if others := sorted(key for key, value in message.items() if value and key not in ("role", "content")):
        refuse("messages", f"must not have '{others[0]}'", message[others[0]], place)
    return {"role": _ROLES[role], "content": _text(message.get("content"), f"{place}.content")}


def _text(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    several = isinstance(content, Sequence) and len(content) > 0
    if not several or not all(_is_text(part) for part in content):
        refuse("messages", "must be text, or a list of text parts", content, place)
    return "".join(part["text"] for part in content)


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )
