"""Places of temporary memory in one block, such that what is in use at once does not overlap."""

from collections.abc import Mapping

import attrs

ALIGNMENT = 64
"""Bytes: a cache line, which two threads should not write to."""


@attrs.frozen
class Lifetime:
    """How long a piece of memory is in use."""

    size: int
    first: int
    """Number of the call that uses it first."""

    last: int
    """Number of the call that uses it last."""

    def overlaps(self, other: "Lifetime") -> bool:
        """Whether both are in use during some call."""
        return self.first <= other.last and other.first <= self.last


@attrs.frozen
class MemoryPlan:
    """Offsets in bytes, and the size of the block."""

    offsets: dict[int, int]
    size: int


def plan(lifetimes: Mapping[int, Lifetime]) -> MemoryPlan:
    """
    Place the largest first, each at the lowest offset that is free while it is in use.

    >>> plan({0: Lifetime(100, 0, 1), 1: Lifetime(10, 1, 2), 2: Lifetime(64, 2, 3)})
    MemoryPlan(offsets={0: 0, 2: 0, 1: 128}, size=192)
    """
    offsets: dict[int, int] = {}
    for key in sorted(lifetimes, key=lambda key: -lifetimes[key].size):
        taken = sorted(
            (offsets[other], offsets[other] + aligned(lifetimes[other].size))
            for other in offsets
            if lifetimes[other].overlaps(lifetimes[key])
        )
        offset = 0
        for start, end in taken:
            if offset + lifetimes[key].size <= start:
                break
            offset = max(offset, end)
        offsets[key] = offset
    ends = [offsets[key] + aligned(lifetime.size) for key, lifetime in lifetimes.items()]
    return MemoryPlan(offsets, max(ends, default=0))


def aligned(size: int) -> int:
    """*size* and what is left of its last :data:`ALIGNMENT` bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT
