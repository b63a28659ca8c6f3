"""The history's tokens as NumPy arrays, for short cuts."""

import threading
from collections.abc import Iterator

import numpy as np

from ...decoding.history import History
from ...decoding.sampling.few_tokens import Cell, Ints


class _Own(threading.local):
    """Per-thread scratch memory."""

    def __init__(self) -> None:
        self.table: Ints = np.zeros(0, dtype=np.int64)


_own = _Own()


def column_ids(history: History, include_prompt: bool, window: int | None) -> Iterator[tuple[int, int, Ints]]:
    """
    Iterate over rows and columns with the preceding ids that count.

    Args:
        history: The tokens before each column.

        include_prompt: Whether the prompt's tokens count.

        window: Number of last tokens that count, prompt or not; None for all.

    Yields:
        Row, column and ids, a read-only view of the history.
    """
    ids, length, prompt = history.ids.numpy(), history.length.tolist(), history.prompt.tolist()
    for row, column in np.ndindex(*history.length.shape):
        end = length[row][column]
        start = 0 if include_prompt else prompt[row]
        start = start if window is None else max(start, end - window)
        yield row, column, ids[row, column if ids.shape[1] > 1 else 0, start:end]


def ids_with_logits(ids: Ints, vocab: int) -> Ints:
    """The *ids* that have a logit: an embedding may be larger than the output head."""
    # As unsigned integers, negative ids are very large.
    if len(ids) and np.maximum.reduce(ids.view(np.uint64)) >= vocab:
        return ids[(ids >= 0) & (ids < vocab)]
    return ids


def counted_tokens(cell: Cell, include_prompt: bool, window: int | None) -> Ints:
    """The ids of one column that count; arguments as for :func:`column_ids`."""
    start = 0 if include_prompt else cell.prompt
    return cell.tokens[start if window is None else max(start, len(cell.tokens) - window) :]


def occurring_indices(ids: Ints, tokens: Ints, vocab: int) -> Ints:
    """
    Indices of the *ids* that occur among the *tokens*.

    Uses a sparse set, which needs no clearing (Briggs and Torczon, 1993, `An Efficient
    Representation for Sparse Sets <https://doi.org/10.1145/176454.176484>`_): the table maps an id
    to its index; stale entries are detected by looking up the id at that index.

    Args:
        ids: ``[n]``, unique, 0 to *vocab* - 1.

        tokens: ``[m]``, any integers.

        vocab: Size of the vocabulary.

    Returns:
        Indices into *ids*, unordered, one for each occurrence among the tokens.
    """
    if not len(ids):
        return ids
    table = _own.table
    if len(table) < vocab:
        table = _own.table = np.zeros(vocab, dtype=np.int64)
    table[ids] = np.arange(len(ids))
    # Out-of-range lookups are clipped to the end, where the comparison fails.
    at = table.take(tokens, mode="clip")
    found: Ints = at[ids.take(at, mode="clip") == tokens]
    return found
