"""Number of torch's threads for a row's arithmetic on the host."""

import contextlib
import ctypes
from collections.abc import Callable, Iterator

import torch

ELEMENTS_A_THREAD = 2**19
"""
Logits for which one thread is at least as fast as two.

The second is woken for each operation, and then waits awake on a core that the next forward needs. On an AMD
EPYC of two cores, steps of SmolLM2-135M with int8 weights at a temperature take 3.45 ms instead of 3.70
(49,152 logits), and 11.8 instead of 12.2 with 16 rows.
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
def few_threads(elements: int) -> Iterator[None]:
    """While the body runs, use no more of torch's threads than are worth it for tensors of *elements*."""
    before = torch.get_num_threads()
    enough = max(1, elements // ELEMENTS_A_THREAD)
    if _set_own_threads is None or enough >= before:
        yield
        return
    _set_own_threads(enough)
    try:
        yield
    finally:
        _set_own_threads(before)
