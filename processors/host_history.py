"""The history's tokens as arrays, for what runs on the host alone."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..decoding.history import History

Ints = NDArray[np.int64]


def columns(history: History) -> Iterator[tuple[int, int, Ints]]:
    """Each row and column, with the ids ``[length]`` that precede it: a view, not to be written to."""
    ids, length = history.ids.numpy(), history.length.numpy()
    for row, column in np.ndindex(*length.shape):
        yield row, column, ids[row, column if ids.shape[1] > 1 else 0, : length[row, column]]


def with_logits(ids: Ints, vocab: int) -> Ints:
    """Those of *ids* that have a logit: an embedding may know more than the head scores."""
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab):
        return ids[(ids >= 0) & (ids < vocab)]
    return ids
