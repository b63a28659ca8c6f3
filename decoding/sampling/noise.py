"""
Counter-based random numbers, the only source of randomness.

Every number is a function of its key (row stream, position, purpose, index). There is no generator
and no state, so a row's numbers do not depend on its neighbours, on the order of calls, or on
whether a draft used them first. The parts of a key are mixed one after another; a linear sum would
collide (stream 1 at position 0 with stream 0 at position 1).

The mixer is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014, `Fast Splittable
Pseudorandom Number Generators <https://doi.org/10.1145/2660193.2660195>`_, section 5).

Numbers are made by eager float64 on the host and passed *into* compiled graphs: a float32
uniform has ties and gives infinite Gumbels, and a compiled ``log`` differs in its last bits.

Besides numbers there are two discrete draws, :func:`coin` and :func:`draw`. Code that uses only
these can be run with an :class:`Oracle` in place of the noise, which enumerates the outcomes. So
:mod:`decodekit.speculation.exactness.exactness_check` computes the exact distribution of a loop's output.
"""

import contextlib
import contextvars
import math
import secrets
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .one_thread import one_thread

BLOCK, TOKEN, XTC, DRAFT, ACCEPT, RESIDUAL, BEAM = 1, 2, 3, 4, 5, 6, 7
"""
Purposes: which block of the vocabulary, and which token inside it (:class:`Sample`); whether
the top choices are removed (:class:`~decodekit.processors.XTC`). And where a verification compares
distributions: all samples of a drafter, the acceptance of a draft token, and its replacement.
Which beams go on (:class:`~decodekit.decoding.StochasticBeams`).
"""


def block_size(vocab: int) -> int:
    """The number of tokens in each block of the vocabulary but the last: √vocab, rounded up."""
    return math.isqrt(vocab - 1) + 1


Bits = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_ALL = (1 << 64) - 1
_30, _27, _31, _12 = (np.uint64(by) for by in (30, 27, 31, 12))


def _bits(numbers: Tensor | NDArray[np.int64]) -> Bits:
    # Numpy has unsigned shifts, and takes a third of torch's time for small keys.
    bits: Bits = (numbers.numpy() if isinstance(numbers, Tensor) else numbers).view(np.uint64)
    return bits


def mix(key: Bits, value: Bits | np.uint64) -> Bits:
    """Fold *value* into a mixed *key*."""
    x = key + _GOLDEN + value
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


def _begin(value: Bits) -> Bits:
    # The first part is mixed by itself: otherwise pairs with equal sums would collide.
    return mix(np.zeros_like(value), value)


FOLDED_SEED: contextvars.ContextVar[int | None] = contextvars.ContextVar("FOLDED_SEED", default=None)
"""The seed of the running generation's random streams, while a custom sampler is called; else None."""


def fresh_seed() -> int:
    """A seed that no other call has, but for a chance of 2**-53 each; JSON keeps all of its digits."""
    return secrets.randbits(53)


def random_streams(numbers: Tensor, seed: int) -> Tensor:
    """The random streams ``[batch]`` int64 of rows numbered *numbers*, under *seed*."""
    key = _begin(np.array([seed & (1 << 64) - 1], dtype=np.uint64))
    return torch.from_numpy(mix(key, _bits(numbers)).view(np.int64))


Key = Tensor | NDArray[np.int64]


class Oracle(Protocol):
    """A replacement for the noise; a *key* is (stream, position, purpose, index)."""

    def coin(self, key: tuple[int, ...], probability: float) -> bool:
        """Whether the number of *key* is below *probability*."""
        ...

    def draw(self, key: tuple[int, ...], weights: Sequence[float]) -> int:
        """The index at which the number of *key*, times the weights' sum, falls in their partial sums."""
        ...

    def folded(self, stream: int, result: int) -> None:
        """Record that *result* is a further stream of the row with *stream*."""
        ...


_oracle: contextvars.ContextVar[Oracle | None] = contextvars.ContextVar("oracle", default=None)


@contextlib.contextmanager
def answered_by(oracle: Oracle) -> Iterator[None]:
    """Use *oracle* in place of the noise in this thread during the body; numbers are refused."""
    token = _oracle.set(oracle)
    try:
        yield
    finally:
        _oracle.reset(token)


def require_numbers() -> None:
    """
    Check that numbers are available.

    Raises:
        RuntimeError: An oracle is in use.
    """
    if _oracle.get() is not None:
        raise RuntimeError("a number cannot be enumerated: ask noise.coin or noise.draw instead")


def folded(stream: Tensor, purpose: int, start: Tensor) -> Tensor:
    """Streams for one *purpose*, different for each *start*; all ``[batch]`` int64."""
    with np.errstate(over="ignore"):
        key = mix(mix(_begin(_bits(stream)), np.uint64(purpose)), _bits(start))
    result = torch.from_numpy(key.view(np.int64))
    if (oracle := _oracle.get()) is not None:
        for row in range(len(result)):
            oracle.folded(int(stream[row]), int(result[row]))
    return result


def uniform(stream: Key, position: Key, purpose: Key | int, index: Key) -> Tensor:
    """
    Numbers in the open interval (0, 1), float64, of the four int64 keys' broadcast shape.

    52 random bits plus one half: never 0 or 1, so a logarithm is always finite.
    """
    require_numbers()
    # Numpy warns of overflow of scalars, but not of arrays.
    with np.errstate(over="ignore"):
        key = mix(_begin(_bits(stream)), _bits(position))
        key = mix(key, np.uint64(purpose) if isinstance(purpose, int) else _bits(purpose))
        key = mix(key, _bits(index))
    return torch.from_numpy(((key >> _12).astype(np.float64) + 0.5) * 2.0**-52)


def exponential(stream: Key, position: Key, purpose: Key | int, index: Key) -> Tensor:
    """Standard exponential numbers, -log(u), float64, of the four keys' broadcast shape."""
    return _log(uniform(stream, position, purpose, index)).neg_()


def gumbel(stream: Key, position: Key, purpose: Key | int, index: Key) -> Tensor:
    """Standard Gumbel numbers, -log(-log(u)), float64, of the four keys' broadcast shape."""
    return _log(exponential(stream, position, purpose, index)).neg_()


def _log(numbers: Tensor) -> Tensor:
    """Their logarithms, in their place."""
    with one_thread(numbers.numel()):
        return numbers.log_()


def exponential_of_one(
    stream: int, position: int, purpose: int, index: NDArray[np.int64]
) -> NDArray[np.float64]:
    """
    :func:`exponential` of one stream, position and purpose, except for the last bits of its logarithm.

    For a few numbers whose order is checked to be clear; takes a third of the time.
    """
    require_numbers()
    key = _mix_one(_mix_one(_mix_one(0, stream), position), purpose)
    if len(index) <= _FEW:
        numbers = (((_mix_one(key, i) >> 12) + 0.5) * 2.0**-52 for i in index.tolist())
        return np.array([-math.log(number) for number in numbers])
    x = index.view(np.uint64) + np.uint64((key + _STEP) & _ALL)
    x ^= x >> _30
    x *= _FIRST
    x ^= x >> _27
    x *= _SECOND
    x ^= x >> _31
    x >>= _12
    number = x.astype(np.float64)
    number += 0.5
    number *= 2.0**-52
    np.log(number, out=number)
    np.negative(number, out=number)
    return number


_FEW = 4
"""Up to so many numbers Python is faster than numpy."""

_STEP, _FACTORS = int(_GOLDEN), (int(_FIRST), int(_SECOND))


def _mix_one(key: int, value: int) -> int:
    """:func:`mix` for Python integers."""
    x = (key + _STEP + value) & _ALL
    x = ((x ^ (x >> 30)) * _FACTORS[0]) & _ALL
    x = ((x ^ (x >> 27)) * _FACTORS[1]) & _ALL
    return x ^ (x >> 31)


def coin(stream: Key, position: Key, purpose: Key | int, index: Key, probability: float | Tensor) -> Tensor:
    """
    Whether the number of each key is below *probability*: bool, of their broadcast shape, on the host.

    Strictly: at probability 0 or NaN never, at 1 or above always.
    """
    if (oracle := _oracle.get()) is not None:
        chances = torch.as_tensor(probability, dtype=torch.float64, device="cpu").numpy()
        *keys, chances = np.broadcast_arrays(stream, position, purpose, index, chances)
        answers = [oracle.coin(key, float(chances[cell])) for cell, key in _cells(keys)]
        return torch.tensor(answers, dtype=torch.bool).reshape(chances.shape)
    number = uniform(stream, position, purpose, index)
    return number < torch.as_tensor(probability, dtype=torch.float64, device="cpu")


def draw(stream: Key, position: Key, purpose: Key | int, index: Key, weights: Tensor) -> Tensor:
    """
    A sample from *weights* for each key, by inverse transform.

    Args:
        stream: With the three that follow, the keys, of the broadcast shape ``[...]``.

        position: The second.

        purpose: The third.

        index: The fourth.

        weights: ``[..., vocab]`` float64, >= 0; they need not add up to 1.

    Returns:
        ``[...]`` int64: never one of weight 0, and -1 where all are 0.
    """
    if (oracle := _oracle.get()) is not None:
        rows = weights.numpy(force=True)
        *keys, sums = np.broadcast_arrays(stream, position, purpose, index, rows.sum(axis=-1))
        answers = [oracle.draw(key, rows[cell].tolist()) if sums[cell] else -1 for cell, key in _cells(keys)]
        return torch.tensor(answers, dtype=torch.int64).reshape(sums.shape)
    partial = weights.cpu().cumsum(dim=-1)
    point = uniform(stream, position, purpose, index) * partial[..., -1]
    # Despite rounding the point is below the last sum, and the first sum above it has a positive weight.
    drawn = (partial <= point[..., None]).sum(dim=-1)
    return drawn.masked_fill(drawn == weights.shape[-1], -1)


def _cells(keys: Sequence[NDArray[np.int64]]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The index of each key, and the key."""
    for cell in np.ndindex(keys[0].shape):
        yield cell, tuple(int(key[cell]) for key in keys)
