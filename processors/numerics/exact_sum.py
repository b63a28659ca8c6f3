"""Sums that do not depend on their order."""

import torch
from torch import Tensor

from ...decoding.sampling.scratch import scratch
from .ranking import below_best


def whole_weights(logits: Tensor) -> Tensor:
    """
    How likely each token is, counted in units of 2^-34 of the likeliest.

    Whole numbers in float64 add up without rounding (2^18 of them stay below 2^53), so sums of
    these are the same in any order and with any number of masked tokens in between. That is
    what makes a processor give the same on the survivors of an earlier one as on all of the
    vocabulary.

    Args:
        logits: ``[..., n]``.

    Returns:
        ``[..., n]`` float64, 0 where a logit is ``-inf``; the likeliest has 2^34. All 0 in a row
        that is all ``-inf``.
    """
    # Half precision has no room for 2^34.
    logits = logits.float() if torch.finfo(logits.dtype).bits < 32 else logits
    return in_units(below_best(logits)).double()


def scratch_weights(logits: Tensor, best: Tensor) -> Tensor:
    """
    :func:`whole_weights` in float32, which has room for them though not for their sums.

    Args:
        logits: ``[..., n]`` float32 on the host.

        best: The largest of each row, ``[..., 1]``, finite.

    Returns:
        ``[..., n]`` float32, in :func:`~decodekit.decoding.sampling.scratch.scratch` memory.
    """
    return in_units(torch.sub(logits, best, out=scratch(logits, "weights")))


def in_units(gaps: Tensor) -> Tensor:
    """The weights of tokens by the *gaps* to their row's largest logit, which are written over."""
    # In the logits' own precision: what is likely to the half comes out as a half. Not by powers
    # of 2, though torch has them several times as fast: it rounds those one way in a vector of
    # numbers and another way in the odd ones at its end.
    return gaps.exp_().mul_(2.0**34).round_()


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
