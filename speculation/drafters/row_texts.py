"""The texts of the rows that a drafter drafts for."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...decoding.history import History


def row_texts(history: History, counts: Sequence[int]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The rows whose count of draft tokens is not 0, and their tokens, views ``[length]``."""
    ids, lengths = history.ids.numpy(), history.length[:, 0].tolist()
    for row, count in enumerate(counts):
        if count:
            yield row, ids[row, 0, : lengths[row]]
