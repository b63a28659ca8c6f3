"""
Tokens whose keys or values overflow.

A mask cannot hide NaN: 0 times NaN is NaN. So no slot ever holds a number that is not finite, or too large
to compute with: writes replace it by 0 and mark the slot as overflowed. A column that attends to a marked
slot, its own included, scores NaN; other columns are not affected.
"""

import torch
from torch import Tensor


def largest_state(dtype: torch.dtype) -> float:
    """
    The largest key or value that is no overflow.

    Scores of larger ones could overflow even where they are masked. float16 has no room for such a
    margin; its scores are computed in float32.
    """
    largest = torch.finfo(dtype).max
    return largest if dtype == torch.float16 else largest**0.4


def take_usable(states: Tensor) -> tuple[Tensor, Tensor]:
    """
    *states* ``[batch, heads, width, head_dim]`` with 0 in place of numbers that overflowed.

    Returns:
        Them, and the largest magnitude of each column before, ``[batch, width]``; NaN if one was NaN.
    """
    magnitudes = states.abs()
    usable = torch.where(_is_usable(magnitudes), states, torch.zeros_like(states))
    return usable, magnitudes.amax(dim=(1, 3))


def overflowed(largest: Tensor) -> Tensor:
    """1 for each column that overflowed, else 0, from the *largest* magnitudes of all layers."""
    return (~_is_usable(largest)).to(largest.dtype)


def without_overflow(logits: Tensor, seen: Tensor, marks: Tensor) -> Tensor:
    """
    The logits as float32, NaN in columns that saw a token that overflowed.

    Args:
        logits: ``[batch, width, vocab]``.

        seen: The slots that each column attends to, ``[batch, width, slots]`` bool.

        marks: 1 for each slot whose token overflowed, else 0: ``[batch or 1, slots]``.
    """
    spoiled = (seen.to(marks.dtype) * marks[:, None]).amax(dim=-1, keepdim=True) > 0
    nan = torch.full((), torch.nan, dtype=torch.float32, device=logits.device)
    return torch.where(spoiled, nan, logits.float())


def _is_usable(magnitudes: Tensor) -> Tensor:
    """Whether each of *magnitudes* is at most :func:`largest_state`; not if it is NaN."""
    # As a tensor: a Python float would enter an XLA graph as float64, which Neuron does not support.
    limit = largest_state(magnitudes.dtype)
    return magnitudes <= torch.full((), limit, dtype=magnitudes.dtype, device=magnitudes.device)
