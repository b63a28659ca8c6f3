"""
Measurement of this machine's memory bandwidth.

A decode step reads every weight once and computes little with it, so memory bandwidth limits the tokens
per second.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import torch

_REPEATS = 5
_CACHES_FULL = 4
_SMALLEST = 2**28
_MEMORY_SHARE = 4


@attrs.frozen
class Bandwidth:
    """A bandwidth measurement."""

    bytes_per_second: float
    method: str
    """Description of the measurement."""


def measure_bandwidth(size: int | None = None, clock: Callable[[], float] = time.perf_counter) -> Bandwidth:
    """
    Sum a buffer larger than any cache several times, with torch's threads; the fastest pass counts.

    Other programs running at the same time lower the result.

    Args:
        size: Bytes of the buffer. None: four times the largest cache, at least 256 MiB, at most
            a quarter of the memory.

        clock: Seconds.
    """
    size = buffer_size(largest_cache(), physical_memory()) if size is None else size
    # Written to: unwritten pages would all map to one page of zeros.
    buffer = torch.ones(size // 4, dtype=torch.float32)
    seconds = []
    for _ in range(_REPEATS):
        start = clock()
        buffer.sum()
        seconds.append(clock() - start)
    return Bandwidth(
        bytes_per_second=buffer.nbytes / min(seconds),
        method=f"the fastest of {_REPEATS} sums over {buffer.nbytes / 2**20:.0f} MiB of float32, "
        f"{torch.get_num_threads()} threads",
    )


def buffer_size(cache: int, memory: int) -> int:
    """
    Bytes to read: more than fit into *cache*, a fraction of *memory*.

    >>> buffer_size(2**25, 2**34), buffer_size(2**29, 2**34), buffer_size(2**29, 2**32)
    (268435456, 2147483648, 1073741824)
    """
    return min(max(_CACHES_FULL * cache, _SMALLEST), memory // _MEMORY_SHARE)


def physical_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def largest_cache() -> int:
    """Bytes of the largest cache of this machine's CPU; 0 where the system does not report it."""
    # Linux reports sizes such as "491520K"; elsewhere the smallest buffer is used.
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(size.read_text().strip().rstrip("K")) * 1024 for size in sizes), default=0)
