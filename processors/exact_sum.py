"""Sums that do not depend on their order."""

import torch
from torch import Tensor


def whole_weights(logits: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """
    How likely each token is, counted in units of 2^-34 of the likeliest.

    Whole numbers in float64 add up without rounding (2^18 of them stay below 2^53), so sums of
    these are the same in any order and with any number of masked tokens in between. That is
    what makes a processor give the same on the survivors of an earlier one as on all of the
    vocabulary.

    Args:
        logits: ``[..., n]``.

        dtype: What holds them. float32 has room for weights of float32 logits, though not for
            their sums.

    Returns:
        ``[..., n]`` in *dtype*, 0 where a logit is ``-inf``; the likeliest has 2^34. All 0 in a row
        that is all ``-inf``.
    """
    best = logits.amax(dim=-1, keepdim=True)
    # Exponentials in the logits' own precision: what is likely to the half comes out as a half.
    relative = (logits - best.masked_fill(best == -torch.inf, 0.0)).exp_()
    return relative.to(dtype).mul_(2.0**34).round_()


def exact_sum(terms: Tensor, bits: int = 34) -> Tensor:
    """
    Sum *terms* over the last dimension, rounded to multiples of 2^-*bits* first.

    Args:
        terms: ``[..., n]`` floating point.

        bits: What is kept behind the point. The sum is independent of the order as long as it
            stays below 2^(53 - *bits*).

    Returns:
        ``[..., 1]`` float64.
    """
    return (terms.double() * 2.0**bits).round().sum(dim=-1, keepdim=True) * 2.0**-bits
