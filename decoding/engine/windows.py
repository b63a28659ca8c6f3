"""The tokens before each column of a step."""

import numpy as np
import torch
from numpy.typing import NDArray

from ..history import History
from ..protocols import Draft

Ints = NDArray[np.int64]


def chain_window(now: History, draft: Draft) -> History:
    """
    The tokens before each column: column *i* has the first *i* tokens of *draft* before it.

    The draft tokens are written after the tokens so far.

    Args:
        now: The tokens so far, width 1.

        draft: A chain, ``[rows, k]``.

    Returns:
        The history of *k* + 1 columns; columns beyond a row's draft are as its last.
    """
    if not draft.ids.shape[1]:
        return now
    ids, length = draft.ids.numpy(), now.length.numpy()
    is_draft = ids >= 0
    rows, columns = is_draft.nonzero()
    now.ids.numpy()[rows, 0, length[rows, 0] + columns] = ids[rows, columns]
    drafted = is_draft.sum(axis=1, keepdims=True)
    return now.at(torch.from_numpy(length + np.minimum(np.arange(ids.shape[1] + 1), drafted)))


def columns_of(draft: Draft) -> list[int] | None:
    """The number of columns of each row, that of its last token and of its *draft*; None if all are equal."""
    if draft.parents is not None or draft.ids.shape[1] == 0:
        return None
    columns = (1 + (draft.ids.numpy() >= 0).sum(axis=1)).tolist()
    return None if min(columns) == 1 + draft.ids.shape[1] else columns
