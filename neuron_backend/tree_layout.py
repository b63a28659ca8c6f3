"""Where the columns of a tree go in a cache that is addressed by position."""

import numpy as np
import torch
from torch import Tensor

from ..decoding.tree_arrays import depths, first_branch, paths
from .cache import SPARE


def lay_out(ids: Tensor, cache_pos: Tensor, parents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """
    What a :class:`~.step.TreeStep` takes besides *ids*, made on the host.

    Args:
        ids: Tokens, ``[batch, width]``; -1 is padding.

        cache_pos: Position of the columns that have no parent, ``[batch]``.

        parents: The column before each, ``[batch, width]``.

    Returns:
        Position of each column and address that it is written to, ``[batch, width]``: its
        position on the first branch, its scratch slot elsewhere. And the columns that each sees,
        ``[batch, width, width]`` bool. Padding lies at position 0, and sees its scratch slot.
    """
    tree = ids.numpy(), parents.numpy()
    positions = np.where(tree[0] >= 0, cache_pos.numpy()[:, None] + depths(*tree), 0)
    written = np.where(first_branch(*tree), positions, SPARE - 1 - np.arange(ids.shape[1]))
    return torch.from_numpy(positions), torch.from_numpy(written), torch.from_numpy(paths(*tree))
