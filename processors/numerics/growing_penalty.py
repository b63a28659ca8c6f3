"""A penalty that grows exponentially with the length of a match."""

import torch
from torch import Tensor

from ..parameter import FLOAT32


def tabulated_penalties(
    multiplier: float | Tensor, base: float | Tensor, allowed_length: int | Tensor, longest: int
) -> Tensor:
    """
    The penalty of each match length from 0 to *longest*.

    Args:
        multiplier: The penalty of a match of *allowed_length*. One for all rows, or ``[batch]``, like
            the next two.

        base: Growth per further token.

        allowed_length: Length of the shortest penalised match.

        longest: At least every *allowed_length*.

    Returns:
        ``[batch or 1, longest + 1]`` float64, finite in float32.

    Raises:
        ValueError: The numbers of rows differ.
    """
    parameters = [
        parameter.tolist() if isinstance(parameter, Tensor) else [parameter]
        for parameter in (multiplier, base, allowed_length)
    ]
    rows = max(len(values) for values in parameters)
    if any(len(values) not in (1, rows) for values in parameters):
        raise ValueError(
            "'multiplier', 'base' and 'allowed_length' must have as many rows as each other: "
            f"got {[len(values) for values in parameters]}"
        )
    by_row = zip(*(values * (rows // len(values)) for values in parameters), strict=True)
    return torch.tensor([_by_length(longest, *of_row) for of_row in by_row], dtype=torch.float64)


def _by_length(longest: int, multiplier: float, base: float, allowed_length: int) -> list[float]:
    # By repeated multiplication, since a power overflows.
    penalties, penalty = [0.0] * min(allowed_length, longest + 1), multiplier
    while len(penalties) <= longest:
        penalties.append(penalty)
        penalty = min(penalty * base, FLOAT32.max)
    return penalties
