"""What a detector may be given to look at."""

from typing import Any

from ...decoding.validation import as_list, is_whole


def as_token_lists(texts: Any, lengths: Any, least: int, eos: tuple[int, ...] = ()) -> list[list[int]]:
    """
    Texts as one list of ids each, without what follows them.

    Args:
        texts: One list of ids, a list of them, each of its own length, or an integer array
            ``[batch, length]`` or ``[length]`` (torch or numpy).

        lengths: How many tokens of each text count; None for all.

        least: How many a text must have.

        eos: The tokens that end a text, and do not belong to it.

    Raises:
        TypeError: Something else.

        ValueError: No text, one that is too short, or a negative id.
    """
    rows = [as_list(row) for row in as_list(texts)]
    if rows and is_whole(rows[0]):
        rows = [rows]
    if not rows:
        raise ValueError("'texts' must be at least one: got none")
    kept = [len(row) for row in rows] if lengths is None else as_list(lengths)
    if len(kept) != len(rows):
        raise ValueError(f"'lengths' must be one for each of the {len(rows)} texts: got {len(kept)}")
    found = [_checked(number, row, n) for number, (row, n) in enumerate(zip(rows, kept, strict=True))]
    found = [row[: next((i for i, token in enumerate(row) if token in eos), None)] for row in found]
    for number, row in enumerate(found):
        if len(row) < least:
            raise ValueError(f"text {number} must have at least {least} tokens to look at: got {len(row)}")
    return found


def _checked(number: int, row: Any, length: Any) -> list[int]:
    if not isinstance(row, list | tuple) or not all(is_whole(token) for token in row):
        raise TypeError(f"text {number} must be a list of token ids: got {row!r}")
    if not is_whole(length) or not 0 <= length <= len(row):
        raise ValueError(f"the length of text {number} must be 0 to {len(row)}, what it has: got {length!r}")
    if min(row[:length], default=0) < 0:
        raise ValueError(f"the ids of text {number} must be >= 0: got {min(row[:length])}")
    return list(row[:length])
