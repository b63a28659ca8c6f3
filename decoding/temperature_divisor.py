"""The divisor of a temperature."""

from typing import overload

from torch import Tensor

SMALLEST_DIVISOR = 1e-20
"""
No smaller divisor of logits than this.

Logits up to 3e18 stay finite in float32, so that none ties with the largest at infinity. Two that differ by
1e-18 or more are e^100 apart in probability: what remains is the maximum, as in the limit.
"""


@overload
def finite_divisor(temperature: Tensor) -> Tensor: ...


@overload
def finite_divisor(temperature: float) -> float: ...


def finite_divisor(temperature: float | Tensor) -> float | Tensor:
    """*temperature*, > 0, as a number to divide logits by: at least :data:`SMALLEST_DIVISOR`."""
    if isinstance(temperature, Tensor):
        return temperature.clamp(min=SMALLEST_DIVISOR)
    return max(temperature, SMALLEST_DIVISOR)
