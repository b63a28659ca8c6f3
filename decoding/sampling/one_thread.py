"""Arithmetic on few logits, on one of torch's threads."""

import contextlib
import ctypes
from collections.abc import Callable, Iterator

import torch

WORTH_THREADS = 2**19
"""
Logits from which on several threads are used.

The others are woken for each operation, and then wait awake on cores that the next forward needs. On an AMD
EPYC of two cores, steps of SmolLM2-135M with int8 weights at a temperature take 3.45 ms instead of 3.70
(49,152 logits), and 11.8 instead of 12.2 with 16 rows. Numbers between are not used: OpenMP would end the
threads that it does not need, and make them again for the forward.
"""


def _openmp_setter() -> Callable[[int], None] | None:
    """
    OpenMP's ``omp_set_num_threads`` as torch calls it; None if torch was built without.

    It sets the number of the calling thread. ``torch.set_num_threads`` also sets that of threads which begin
    later, and so would slow down a forward that another thread is about to begin.
    """
    try:
        setter = ctypes.PyDLL(torch._C.__file__).omp_set_num_threads
    except (AttributeError, OSError):
        return None
    setter.argtypes, setter.restype = [ctypes.c_int], None
    return setter


_set_own_threads = _openmp_setter()


@contextlib.contextmanager
def one_thread(elements: int) -> Iterator[None]:
    """While the body runs, use one of torch's threads, if tensors of *elements* are not worth several."""
    before = torch.get_num_threads()
    if _set_own_threads is None or elements >= WORTH_THREADS or before == 1:
        yield
        return
    try:
        _set_own_threads(1)
        yield
    finally:
        _set_own_threads(before)
