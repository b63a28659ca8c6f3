"""The tokens before each column of a forward."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ..history import History
from ..protocols import DecoderShape


def columns_of(
    history: History, starts: NDArray[np.int64], ends: NDArray[np.int64], columns: int, shape: DecoderShape
) -> History:
    """
    What precedes the choice in each scored column of a forward.

    Args:
        history: The rows of a run, on one path.

        starts: The position of each row's first token, ``[rows]``.

        ends: One more than the position of its last, ``[rows]``. A row that is fed nothing has both
            equal.

        columns: How many are scored: all, the tokens left-aligned, or the last one alone, the
            tokens right-aligned.

        shape: The decoder's.

    Returns:
        A window of all of the decoder's rows. What stands in columns of padding, in idle rows and
        in rows that the run does not have means nothing, but is no length that there could not be:
        an idle row may have more tokens than the decoder has positions.
    """
    first = ends - 1 if columns == 1 else starts
    length = np.minimum(first[:, None] + np.arange(1, columns + 1), ends[:, None]).clip(1, shape.max_length)
    missing = shape.batch_size - len(length)
    return History(
        _filled(history.ids, missing, 0),
        _filled(torch.from_numpy(length), missing, 1),
        _filled(history.prompt, missing, 1),
        _filled(history.random_stream, missing, 0),
    )


def _filled(values: Tensor, missing: int, value: int) -> Tensor:
    """*values* and as many rows more."""
    return pad(values, (*[0] * (2 * values.dim() - 1), missing), value=value) if missing else values
