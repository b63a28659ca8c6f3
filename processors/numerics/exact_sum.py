"""Sums independent of the order of their terms."""

import torch
from torch import Tensor

from .ranking import below_best


def whole_weights(logits: Tensor) -> Tensor:
    """
    Probabilities relative to the largest, as integers in units of 2^-34.

    Integers in float64 add up without rounding (2^18 of them stay below 2^53), so their sums do
    not depend on the order or on masked tokens in between. A processor that uses them gives the
    same result on the survivors of an earlier one as on the whole vocabulary.

    Args:
        logits: ``[..., n]``.

    Returns:
        ``[..., n]`` float64, 2^34 for the largest logit, 0 for ``-inf``. All 0 in a row that is all
        ``-inf``.
    """
    # Half precision cannot hold 2^34.
    logits = logits.float() if torch.finfo(logits.dtype).bits < 32 else logits
    return in_units(below_best(logits)).double()


def in_units(gaps: Tensor) -> Tensor:
    """Integer weights from *gaps* to the row's largest logit, computed in place."""
    # In the logits' precision, so that a relative probability of 1/2 is exact. Not exp2, although
    # several times as fast: torch rounds it differently in the scalar tail of a vector.
    return gaps.exp_().mul_(2.0**34).round_()


def exact_sum(terms: Tensor, bits: int = 34) -> Tensor:
    """
    Sum *terms* over the last dimension, rounded to multiples of 2^-*bits* first.

    Args:
        terms: ``[..., n]`` floating point.

        bits: Fractional bits kept. The sum is independent of the order while it stays below
            2^(53 - *bits*).

    Returns:
        ``[..., 1]`` float64.
    """
    return (terms.double() * 2.0**bits).round().sum(dim=-1, keepdim=True) * 2.0**-bits
