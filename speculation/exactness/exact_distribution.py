"""Exact distribution of a generator's output."""

from collections.abc import Callable, Hashable
from typing import Any

import attrs


@attrs.frozen(eq=False)
class ExactDistribution:
    """Probability of each output."""

    probabilities: dict[Hashable, float]
    """Probability of each output, > 0."""

    paths: int
    """Number of enumerated paths."""

    def expected(self, value: Callable[[Any], float]) -> float:
        """Expectation of a function of the output."""
        return sum(p * value(output) for output, p in self.probabilities.items())

    def __str__(self) -> str:
        ordered = sorted(self.probabilities.items(), key=lambda item: -item[1])
        return "\n".join(f"{p:.4f}  {readable(output)}" for output, p in ordered)


def total_variation(first: ExactDistribution, second: ExactDistribution) -> float:
    """Total variation distance: half the sum of absolute differences, 0 (equal) to 1 (disjoint)."""
    a, b = first.probabilities, second.probabilities
    return sum(abs(a.get(output, 0.0) - b.get(output, 0.0)) for output in a.keys() | b.keys()) / 2


def readable(output: Hashable) -> str:
    """Format an output in one line."""
    if not isinstance(output, tuple):
        return str(output)
    return ", ".join(f"{list(row[0])} {row[1]}" if _is_row(row) else str(row) for row in output)


def _is_row(row: object) -> bool:
    return isinstance(row, tuple) and len(row) == 2 and isinstance(row[0], tuple)
