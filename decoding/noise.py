"""
The only source of randomness: numbers that are a function of where they are used.

Every number is keyed by (row stream, position, purpose, index). There is no generator and no
state, so a row's numbers do not depend on its neighbours, on the order of the calls, or on
whether a draft asked for them first. Keys are mixed one into the other; a linear sum of them
would collide (stream 1 at position 0 with stream 0 at position 1).

The mixer is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014, `Fast Splittable
Pseudorandom Number Generators <https://doi.org/10.1145/2660193.2660195>`_, section 5).

Numbers are made by eager float64 on the host and passed *into* compiled graphs: a float32
uniform has ties and gives infinite Gumbels, and a compiled ``log`` differs in its last bits.
"""

import torch
from torch import Tensor

BLOCK, TOKEN, XTC = 1, 2, 3
"""
Purposes: which block of the vocabulary, and which token inside it (:class:`Sample`); whether
the top choices go (:class:`~decodekit.processors.XTC`).
"""


def _signed(bits: int) -> int:
    # torch has no unsigned arithmetic; int64 wraps around to the same bits.
    return bits - (1 << 64) if bits >> 63 else bits


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shifted(x: Tensor, by: int) -> Tensor:
    # A logical shift: >> on int64 would drag the sign along.
    return (x >> by) & ((1 << (64 - by)) - 1)


def mix(key: Tensor, value: Tensor | int) -> Tensor:
    """Fold *value* into a mixed *key*: int64 tensors of one broadcast shape."""
    x = key + _GOLDEN + value
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _begin(value: Tensor | int, like: Tensor) -> Tensor:
    # A first key has to be mixed by itself: unmixed, (key, value) pairs of one sum would meet.
    return mix(torch.zeros_like(like), value)


def streams(numbers: Tensor, seed: int) -> Tensor:
    """The random streams ``[batch]`` of rows numbered *numbers*, under *seed*."""
    return mix(_begin(_signed(seed & (1 << 64) - 1), numbers), numbers)


def uniform(stream: Tensor, position: Tensor, purpose: int, index: Tensor) -> Tensor:
    """
    Numbers in the open interval (0, 1), float64, of the four keys' broadcast shape.

    52 random bits and a half: the ends are never met, so a logarithm is always finite.
    """
    key = mix(mix(mix(_begin(stream, stream), position), purpose), index)
    return (_shifted(key, 12).double() + 0.5) * 2.0**-52


def gumbel(stream: Tensor, position: Tensor, purpose: int, index: Tensor) -> Tensor:
    """Standard Gumbel numbers, -log(-log(u)), float64, of the four keys' broadcast shape."""
    return -torch.log(-torch.log(uniform(stream, position, purpose, index)))
