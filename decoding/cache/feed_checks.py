"""The check of what is fed to a decoder."""

from collections.abc import Sequence
from operator import sub

import torch
from torch import Tensor

from ..history import History


def checked_feed(
    history: History, length: Tensor, need: Tensor, batch_size: int, scored_width: int
) -> tuple[list[int], list[int]]:
    """
    The arguments *length* and *need* of :meth:`~.slots.Slots.feed` as lists.

    Raises:
        TypeError: They are not int64 tensors.

        ValueError: A wrong shape, a length beyond the ids, or more needed than there is or is scored.
    """
    if not isinstance(history, History):
        raise TypeError(f"'history' must be a History: got a {type(history).__name__}")
    _require_vector("length", length)
    _require_vector("need", need)
    rows, paths, capacity = history.ids.shape
    if paths != 1:
        raise ValueError(f"'history' must lie on one path: got {paths}")
    ends, wanted = length.tolist(), need.tolist()
    if not 1 <= rows <= batch_size or not len(ends) == len(wanted) == rows:
        raise ValueError(
            f"'history', 'length' and 'need' must have the same rows, 1 to {batch_size}: "
            f"got {rows}, {len(ends)} and {len(wanted)}"
        )
    if min(ends) < 0 or max(ends) > capacity:
        raise ValueError(f"'length' must be 0 to {capacity}, the room of the history: got {ends}")
    if max(wanted) > scored_width:
        raise ValueError(f"'need' must be <= {scored_width}, the scored width: got {max(wanted)}")
    if min(wanted) < 0 or min(map(sub, ends, wanted)) < 0:
        raise ValueError(f"'need' must be 0 to the row's length, of {ends}: got {wanted}")
    return ends, wanted


def check_source(source: Sequence[int], rows: int) -> int:
    """
    Check the *source* of each of so many *rows* of a copy; return their number.

    Raises:
        ValueError: It does not name a row for each row.
    """
    if len(source) != rows or not all(row in range(rows) for row in source):
        raise ValueError(f"'source' must name one of {rows} rows for each row: got {list(source)}")
    return rows


def _require_vector(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype is not torch.int64:
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"'{name}' must be an int64 tensor: got {kind}")
    if tensor.ndim != 1:
        raise ValueError(f"'{name}' must have 1 dimension: got shape {list(tensor.shape)}")
