"""Which row of the decoder each beam is in."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...common_prefix_length import common_prefix_length

Ints = NDArray[np.int64]


def columns_of_children(parents: Sequence[int], ids: Ints) -> list[int]:
    """
    Place the next beams of a prompt so that little has to be fed again.

    The first child of a beam stays in its column, where only its new token is missing. Any other goes
    to a column whose beam goes on nowhere, to the one that has most leading tokens in common with it.

    Args:
        parents: The column of each child's parent, at most one child a column.

        ids: The tokens of each column's beam, ``[columns, length]``.

    Returns:
        A column for each child, all different.
    """
    columns: list[int] = []
    for child, parent in enumerate(parents):
        columns.append(parent if parent not in parents[:child] else -1)
    free = sorted({*range(len(ids))} - {*parents})
    for child, parent in enumerate(parents):
        if columns[child] < 0:
            columns[child] = max(free, key=lambda column: common_prefix_length(ids[column], ids[parent]))
            free.remove(columns[child])
    return columns
