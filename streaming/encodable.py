"""Text that a file can take."""

from typing import TextIO


def encodable(text: str, file: TextIO) -> str:
    """*text*, with ``?`` for what the encoding of *file* lacks: it must not stop a generation."""
    encoding = getattr(file, "encoding", None)
    return text.encode(encoding, "replace").decode(encoding) if encoding else text
