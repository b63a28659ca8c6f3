"""Arithmetic on few logits, on one of torch's threads."""

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

WORTH_THREADS = 2**20
"""
Logits from which on several threads are used.

The others are woken for each operation, and then wait awake on cores that the next forward needs. On an AMD
EPYC of two cores, steps of SmolLM2-135M with int8 weights at a temperature take 3.45 ms instead of 3.70
(49,152 logits), and 11.8 instead of 12.2 with 16 rows. Numbers between are not used: OpenMP would end the
threads that it does not need, and make them again for the forward.
"""


def _function(name: str, result: type | None) -> Callable[[int], Any] | None:
    """A function of torch's libraries that takes a number; None if they do not have it."""
    try:
        function = ctypes.PyDLL(torch._C.__file__)[name]
    except (AttributeError, OSError):
        return None
    function.argtypes, function.restype = [ctypes.c_int], result
    return cast(Callable[[int], Any], function)


_set_openmp_threads = _function("omp_set_num_threads", None)
"""
OpenMP's setting as torch calls it; None if torch was built without.

It sets the number of the calling thread. ``torch.set_num_threads`` also sets that of threads which begin
later, and so would slow down a forward that another thread is about to begin.
"""

_set_mkl_threads = _function("MKL_Set_Num_Threads_Local", ctypes.c_int)
"""
MKL's setting of the calling thread, which returns the one before; None if torch was built without MKL.

``log`` and ``exp`` of torch are MKL's, which has threads of its own: they wait for another thread at 3,500
numbers, 8 ms where that thread's processor is busy.
"""


@contextlib.contextmanager
def one_thread(elements: int) -> Iterator[None]:
    """While the body runs, use one of torch's threads, if tensors of *elements* are not worth several."""
    before = torch.get_num_threads()
    if _set_openmp_threads is None or elements >= WORTH_THREADS or before == 1:
        yield
        return
    set_mkl_threads = _set_mkl_threads or _ignored
    of_mkl = set_mkl_threads(1)
    try:
        _set_openmp_threads(1)
        yield
    finally:
        _set_openmp_threads(before)
        set_mkl_threads(of_mkl)


def _ignored(number: int) -> int:
    """The setting of an MKL that is not there."""
    return number
