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
    rows, parents = np.arange(len(ids)), np.where(ids >= 0, parents, -1)
    depth = np.zeros_like(parents)
    for column in range(1, ids.shape[1]):
        parent = parents[:, column]
        depth[:, column] = np.where(parent < 0, 0, depth[rows, parent] + 1)
    return depth


def paths(ids: Ints, parents: Ints) -> Bools:
    """``[rows, width, width]``: the columns on the way to each, and itself; itself alone under padding."""
    rows, parents = np.arange(len(ids)), np.where(ids >= 0, parents, -1)
    path = np.repeat(np.eye(ids.shape[1], dtype=bool)[None], len(ids), axis=0)
    for column in range(1, ids.shape[1]):
        parent = parents[:, column]
        path[:, column] |= path[rows, parent] & (parent >= 0)[:, None]
    return path


def first_branch(ids: Ints, parents: Ints) -> Bools:
    """``[rows, width]``: the first column, its first child, that one's first child, and so on."""
    real, tip = ids >= 0, np.zeros(len(ids), dtype=np.int64)
    branch = np.zeros_like(real)
    branch[:, 0] = real[:, 0]
    for column in range(1, ids.shape[1]):
        # The tip's first child becomes the tip, so that its other children find another one.
        branch[:, column] = real[:, column] & (parents[:, column] == tip)
        tip[branch[:, column]] = column
    return branch
