"""Input of watermark detectors: texts as lists of token ids."""

from typing import Any

from ...decoding.validation import LARGEST, as_list, is_iterable, is_whole


def as_token_lists(texts: Any, lengths: Any, least: int, eos: tuple[int, ...] = ()) -> list[list[int]]:
    """
    Convert texts to one list of token ids each, cut at their length and end of sequence.

    Args:
        texts: One list of ids, a list of them, each of its own length, or an integer array
            ``[batch, length]`` or ``[length]`` (torch or numpy).

        lengths: Number of tokens of each text that count; None for all.

        least: Minimum number of tokens of a text.

        eos: End-of-sequence token ids, not part of the text.

    Raises:
        TypeError: *texts* is neither.

        ValueError: No texts, a text that is too short, or a negative id.
    """
    if not is_iterable(texts):
        raise TypeError(f"'texts' must be lists of token ids: got {texts!r}")
    rows = [as_list(row) for row in as_list(texts)]
    if rows and is_whole(rows[0]):
        rows = [rows]
    if not rows:
        raise ValueError("'texts' must be at least one: got none")
    if lengths is not None and not is_iterable(lengths):
        raise TypeError(f"'lengths' must be whole numbers, one for each text: got {lengths!r}")
    kept = [None for _ in rows] if lengths is None else list(as_list(lengths))
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
    length = len(row) if length is None else length
    if not is_whole(length) or not 0 <= length <= len(row):
        raise ValueError(f"the length of text {number} must be 0 to {len(row)}, what it has: got {length!r}")
    if min(row[:length], default=0) < 0:
        raise ValueError(f"the ids of text {number} must be >= 0: got {min(row[:length])}")
    if max(row[:length], default=0) > LARGEST:
        raise ValueError(f"the ids of text {number} must fit into 64 bits: got {max(row[:length])}")
    return list(row[:length])
