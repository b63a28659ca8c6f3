"""What a stop condition says, as the loop asks for it."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .history import History
from .offered import offered
from .protocols import StopCondition

TokenCode: TypeAlias = Callable[[int, int, int, int], int]
"""
The code of one new token: ``(token, length, prompt, row)``, the token itself among the *length*.

A condition that looks at nothing else may offer one, by ``by_token()``: that spares arrays of one number.
"""


def by_token(condition: StopCondition) -> TokenCode | None:
    """What *condition* says of one new token by these numbers alone; None if it looks at more."""
    offer = offered(condition, "by_token")
    code: TokenCode | None = None if offer is None else offer()
    return code


def known_codes(codes: Tensor, after: History, endings: int) -> NDArray[np.int64]:
    """
    *codes*, if they are those of a stop condition with so many *endings*.

    Raises:
        ValueError: They are not: of another shape than the columns *after* which it was asked, or unknown.
    """
    shape = after.length.shape
    if isinstance(codes, Tensor) and codes.shape == shape:
        known: NDArray[np.int64] = codes.numpy(force=True)
        if ((known >= 0) & (known <= endings)).all():
            return known
    raise ValueError(
        f"'stop' must give codes 0 to {endings}, one for each ending, of the shape {list(shape)}: "
        f"got {codes!r}"
    )
