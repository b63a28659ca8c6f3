"""Detection of an incomplete UTF-8 character at the end of bytes."""

import re

# The Unicode Standard, version 16, table 3-7: the proper prefixes of well-formed sequences.
_OPEN = re.compile(
    rb"(?:[\xC2-\xDF]"
    rb"|\xE0[\xA0-\xBF]?|[\xE1-\xEC\xEE\xEF][\x80-\xBF]?|\xED[\x80-\x9F]?"
    rb"|\xF0(?:[\x90-\xBF][\x80-\xBF]?)?|[\xF1-\xF3][\x80-\xBF]{0,2}|\xF4(?:[\x80-\x8F][\x80-\xBF]?)?)\Z"
)


def open_from(data: bytes) -> int:
    r"""
    The index at which an incomplete last character begins.

    Everything before it decodes the same whatever follows.

    Returns:
        An index into *data*; its length if it does not end inside a character.

    >>> open_from("aé".encode()[:-1]), open_from("aé".encode()), open_from(b"a\xff")
    (1, 3, 2)
    """
    match = _OPEN.search(data, max(0, len(data) - 3))
    return len(data) if match is None else match.start()
