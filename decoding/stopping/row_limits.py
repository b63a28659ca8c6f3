"""Limits: one number for all rows, or one for each."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..history import History


def limits(n: Tensor, history: History) -> NDArray[np.int64]:
    """One limit for all rows or one for each, ``[1, 1]`` or ``[rows, 1]``."""
    require_rows(n, len(history.length))
    return n.numpy()[:, None]


def require_rows(n: Tensor, rows: int) -> None:
    """
    Check the number of limits.

    Raises:
        ValueError: *n* is neither one number nor one for each of *rows* rows.
    """
    if len(n) not in (1, rows):
        # Prompts that take turns are requests of one row each.
        alone = "in a request of one row, not one for each row"
        rule = f"or one for each of the {rows} rows" if rows > 1 else alone
        raise ValueError(f"'n' must be one number {rule}: got {len(n)}")


def limit_of_row(n: Tensor) -> Callable[[int], int]:
    """The limit of a row by its number, from one for all rows or one for each."""
    numbers: list[int] = n.tolist()
    one = numbers[0]
    return numbers.__getitem__ if len(numbers) > 1 else lambda row: one
