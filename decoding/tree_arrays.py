"""
Trees of tokens.

A tree is two arrays ``[rows, width]``: *ids*, -1 for the padding behind a row's tokens, and
*parents*, for each column the one before it, smaller than its own number, or -1 for none.
What parents say under padding is not looked at.
"""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def depths(ids: Ints, parents: Ints) -> Ints:
    """How many columns lie on the way to each, ``[rows, width]``; 0 under padding."""
    depth = np.zeros_like(ids)
    for row, before in enumerate(_parents(ids, parents)):
        found: list[int] = []
        for parent in before:
            found.append(found[parent] + 1 if parent >= 0 else 0)
        depth[row, : len(found)] = found
    return depth


def paths(ids: Ints, parents: Ints) -> Bools:
    """``[rows, width, width]``: the columns on the way to each, and itself; itself alone under padding."""
    path = np.repeat(np.eye(ids.shape[1], dtype=bool)[None], len(ids), axis=0)
    for found, before in zip(path, _parents(ids, parents), strict=True):
        for column, parent in enumerate(before):
            if parent >= 0:
                found[column] |= found[parent]
    return path


def first_branch(ids: Ints, parents: Ints) -> Bools:
    """``[rows, width]``: the first column, its first child, that one's first child, and so on."""
    branch = np.zeros(ids.shape, dtype=bool)
    for row, before in enumerate(_parents(ids, parents)):
        tip = -1
        for column, parent in enumerate(before):
            # The tip's first child becomes the tip, so that its other children find another one.
            if parent == tip:
                branch[row, column] = True
                tip = column
    return branch


def _parents(ids: Ints, parents: Ints) -> list[list[int]]:
    """Of each row's tokens, as numbers: for trees as small as these, quicker than arrays."""
    counts = (ids >= 0).sum(axis=1).tolist()
    return [row[:count] for row, count in zip(parents.tolist(), counts, strict=True)]
