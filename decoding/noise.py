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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK, TOKEN, XTC = 1, 2, 3
"""
Purposes: which block of the vocabulary, and which token inside it (:class:`Sample`); whether
the top choices go (:class:`~decodekit.processors.XTC`).
"""


Bits = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _12 = (np.uint64(by) for by in (30, 27, 31, 12))


def _bits(numbers: Tensor | NDArray[np.int64]) -> Bits:
    # Numpy has unsigned shifts, and takes a third of torch's time on keys this small.
    bits: Bits = (numbers.numpy() if isinstance(numbers, Tensor) else numbers).view(np.uint64)
    return bits


def mix(key: Bits, value: Bits | np.uint64) -> Bits:
    """Fold *value* into a mixed *key*."""
    x = key + _GOLDEN + value
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


def _begin(value: Bits) -> Bits:
    # A first key has to be mixed by itself: unmixed, (key, value) pairs of one sum would meet.
    return mix(np.zeros_like(value), value)


def streams(numbers: Tensor, seed: int) -> Tensor:
    """The random streams ``[batch]`` int64 of rows numbered *numbers*, under *seed*."""
    key = _begin(np.array([seed & (1 << 64) - 1], dtype=np.uint64))
    return torch.from_numpy(mix(key, _bits(numbers)).view(np.int64))


Key = Tensor | NDArray[np.int64]


def uniform(stream: Key, position: Key, purpose: Key | int, index: Key) -> Tensor:
    """
    Numbers in the open interval (0, 1), float64, of the four int64 keys' broadcast shape.

    52 random bits and a half: the ends are never met, so a logarithm is always finite.
    """
    # Numpy warns of scalars that wrap around, though not of arrays.
    with np.errstate(over="ignore"):
        key = mix(_begin(_bits(stream)), _bits(position))
        key = mix(key, np.uint64(purpose) if isinstance(purpose, int) else _bits(purpose))
        key = mix(key, _bits(index))
    return torch.from_numpy(((key >> _12).astype(np.float64) + 0.5) * 2.0**-52)


def gumbel(stream: Key, position: Key, purpose: Key | int, index: Key) -> Tensor:
    """Standard Gumbel numbers, -log(-log(u)), float64, of the four keys' broadcast shape."""
    return uniform(stream, position, purpose, index).log_().neg_().log_().neg_()
