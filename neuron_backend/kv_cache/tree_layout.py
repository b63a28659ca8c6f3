"""Layout of a tree's columns in the KV cache."""

import numpy as np
import torch
from torch import Tensor

from ...decoding.trees import depths, first_branch, paths
from .buffers import SPARE


def lay_out_tree(ids: Tensor, cache_pos: Tensor, parents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """
    Layout of a tree's columns, computed on the host: the inputs of a :class:`~..step.TreeStep` besides *ids*.

    Args:
        ids: Tokens, ``[batch, width]``; -1 is padding.

        cache_pos: Position of the root columns, ``[batch]``.

        parents: Parent column of each, ``[batch, width]``; -1 for a root.

    Returns:
        Position of each column and the address that it is written to, both ``[batch, width]``: its position
        on the first branch, its scratch slot elsewhere. And the columns that each attends to,
        ``[batch, width, width]`` bool. Padding is at position 0 and attends to its scratch slot.
    """
    tree = ids.numpy(), parents.numpy()
    positions = np.where(tree[0] >= 0, cache_pos.numpy()[:, None] + depths(*tree), 0)
    written = np.where(first_branch(*tree), positions, SPARE - 1 - np.arange(ids.shape[1]))
    return torch.from_numpy(positions), torch.from_numpy(written), torch.from_numpy(paths(*tree))
