"""Padding of the prompts of one context-encoding call."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .cache_record import Ints

_AMBIGUOUS = 2
"""Up to this length, the libraries' padding position, 1, is not below the last token's own."""


def lay_out_prompts(tokens: Sequence[Ints], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """
    Right-pad prompts for the context encoding of NxD Inference and optimum-neuron.

    Both libraries score the first column of the highest position, and fill the rest of a bucket with
    position 1. So a row of one token, at position 0, would be scored at a padding token, and a row of two
    depends on how the tie is broken. Calls with such rows are padded here to *most* columns, so that the
    libraries add nothing. The padding repeats the row's last token at position 0; in a row of one token
    all columns are then equal, whichever is scored.

    Args:
        tokens: The ids of each row, at least one.

        most: Columns of the largest bucket.

    Returns:
        Ids, positions and a mask that is 1 at tokens, ``[rows, columns]`` int64 each.
    """
    lengths = [len(row) for row in tokens]
    columns = most if min(lengths) <= _AMBIGUOUS else max(lengths)
    ids = np.stack([np.concatenate([row, np.full(columns - len(row), row[-1])]) for row in tokens])
    at = np.arange(columns)
    positions = np.stack([np.where(at < length, at, 0) for length in lengths])
    mask = np.stack([(at < length) | (length == 1) for length in lengths]).astype(np.int64)
    return torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(mask)
