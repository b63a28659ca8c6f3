"""The history's tokens as arrays, for what runs on the host alone."""

import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..decoding.few import Cell
from ..decoding.history import History

Ints = NDArray[np.int64]

_own = threading.local()

_CALLS = 2**31 - 1
"""As many as have a number of their own."""


def columns(history: History, include_prompt: bool, window: int | None) -> Iterator[tuple[int, int, Ints]]:
    """
    Each row and column, with the ids before it that count.

    Args:
        history: The tokens before each column.

        include_prompt: Whether the prompt's tokens count.

        window: How many of the last tokens count, prompt or not; None for all.

    Yields:
        The ids as a view of the history, not to be written to.
    """
    ids, length, prompt = history.ids.numpy(), history.length.tolist(), history.prompt.tolist()
    for row, column in np.ndindex(*history.length.shape):
        end = length[row][column]
        start = 0 if include_prompt else prompt[row]
        start = start if window is None else max(start, end - window)
        yield row, column, ids[row, column if ids.shape[1] > 1 else 0, start:end]


def with_logits(ids: Ints, vocab: int) -> Ints:
    """Those of *ids* that have a logit: an embedding may know more than the head scores."""
    # Without a sign, what is negative is very large.
    if len(ids) and np.maximum.reduce(ids.view(np.uint64)) >= vocab:
        return ids[(ids >= 0) & (ids < vocab)]
    return ids


def counted_tokens(cell: Cell, include_prompt: bool, window: int | None) -> Ints:
    """The ids before one column that count; arguments as of :func:`columns`."""
    start = 0 if include_prompt else cell.prompt
    return cell.tokens[start if window is None else max(start, len(cell.tokens) - window) :]


def occurring(ids: Ints, tokens: Ints, vocab: int) -> Ints:
    """
    Which of some *ids* are among the *tokens*: where they stand in *ids*.

    Args:
        ids: ``[n]``, below *vocab*.

        tokens: ``[m]``, any.

        vocab: How many tokens there are.
    """
    marks = getattr(_own, "marks", None)
    if marks is None or len(marks) < vocab or _own.call == _CALLS:
        marks = _own.marks = np.zeros(vocab, dtype=np.int32)
        _own.call = 0
    # A table to look up takes no time for what is many times as long as the list. Each call marks by its
    # own number, so that nothing has to be wiped, nor is wrong after an interrupt.
    call = _own.call = _own.call + 1
    marks[with_logits(tokens, vocab)] = call
    at: Ints = (marks.take(ids) == call).nonzero()[0]
    return at
