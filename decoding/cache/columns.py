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
    The history before the sample of each scored column.

    Args:
        history: The rows of a run, on one path.

        starts: The position of each row's first token, ``[rows]``.

        ends: One more than the position of its last, ``[rows]``. For an idle row both are
            equal.

        columns: Number of scored columns: all, with left-aligned tokens, or only the last, with
            right-aligned tokens.

        shape: The decoder's shape.

    Returns:
        A window of all of the decoder's rows. Padding columns, idle rows and rows outside the run are
        undefined but have valid lengths: an idle row may have more tokens than the decoder has
        positions.
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
    """*values* and *missing* further rows."""
    return pad(values, (*[0] * (2 * values.dim() - 1), missing), value=value) if missing else values
