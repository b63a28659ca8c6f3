"""Text that a file can take."""

from typing import TextIO


def encodable(text: str, file: TextIO) -> str:
    """*text*, with ``?`` for what *file* would refuse to encode: it must not stop a generation."""
    encoding = getattr(file, "encoding", None)
    if encoding is None:
        return text
    try:
        text.encode(encoding, getattr(file, "errors", None) or "strict")
    except UnicodeEncodeError:
        return text.encode(encoding, "replace").decode(encoding)
    return text
