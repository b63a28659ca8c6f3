"""The history's tokens as arrays, for what runs on the host alone."""

import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...decoding.history import History
from ...decoding.sampling.few import Cell

Ints = NDArray[np.int64]


class _Own(threading.local):
    """What one thread keeps."""

    def __init__(self) -> None:
        self.table: Ints = np.zeros(0, dtype=np.int64)


_own = _Own()


def host_columns(
    history: History, include_prompt: bool, window: int | None
) -> Iterator[tuple[int, int, Ints]]:
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


def ids_with_logits(ids: Ints, vocab: int) -> Ints:
    """Those of *ids* that have a logit: an embedding may know more than the head scores."""
    # Without a sign, what is negative is very large.
    if len(ids) and np.maximum.reduce(ids.view(np.uint64)) >= vocab:
        return ids[(ids >= 0) & (ids < vocab)]
    return ids


def counted_tokens(cell: Cell, include_prompt: bool, window: int | None) -> Ints:
    """The ids before one column that count; arguments as of :func:`columns`."""
    start = 0 if include_prompt else cell.prompt
    return cell.tokens[start if window is None else max(start, len(cell.tokens) - window) :]


def occurring_indices(ids: Ints, tokens: Ints, vocab: int) -> Ints:
    """
    Which of some *ids* are among the *tokens*.

    By a set that needs no clearing (Briggs and Torczon, 1993, `An Efficient Representation for Sparse
    Sets <https://doi.org/10.1145/176454.176484>`_): the table says where an id would stand, whatever
    it said before, and the ids say whether it does.

    Args:
        ids: ``[n]``, each once, 0 to *vocab* - 1.

        tokens: ``[m]``, any.

        vocab: How many tokens there are.

    Returns:
        Where they stand in *ids*, in no order, and as often as they are among the tokens.
    """
    if not len(ids):
        return ids
    table = _own.table
    if len(table) < vocab:
        table = _own.table = np.zeros(vocab, dtype=np.int64)
    table[ids] = np.arange(len(ids))
    # What is outside of the table, or of the list, is met at its end, where another id stands.
    at = table.take(tokens, mode="clip")
    found: Ints = at[ids.take(at, mode="clip") == tokens]
    return found
