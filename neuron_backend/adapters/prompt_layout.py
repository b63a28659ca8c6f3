"""How the prompts of one call are laid out for a context encoding."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .record import Ints

_AMBIGUOUS = 2
"""Up to so many tokens, the position that the libraries pad with is as high as the last token's own."""


def lay_out_prompts(tokens: Sequence[Ints], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """
    Prompts, right-padded, for the context encoding of NxD Inference and optimum-neuron.

    Both score the column of the highest position, the first of them, and both fill what a bucket
    has left with position 1. So a row that has only one token, at position 0, would be scored
    behind a padding token, and one of two depends on how a tie is broken. Such rows get all *most*
    columns here, so that nothing is left to fill. Padding of ours stands at position 0. Where the
    token itself does too, the padding is that token: then every column is the same, whichever is scored.

    Args:
        tokens: The ids of each row, at least one.

        most: Columns of the largest bucket.

    Returns:
        Ids, positions and a mask that is 1 where a token stands, ``[rows, columns]`` int64 each.
    """
    lengths = [len(row) for row in tokens]
    columns = most if min(lengths) <= _AMBIGUOUS else max(lengths)
    ids = np.stack([np.concatenate([row, np.full(columns - len(row), row[-1])]) for row in tokens])
    at = np.arange(columns)
    positions = np.stack([np.where(at < length, at, 0) for length in lengths])
    mask = np.stack([(at < length) | (length == 1) for length in lengths]).astype(np.int64)
    return torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(mask)
