"""Torch's number of threads, of the calling thread alone."""

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch


def _function(name: str, result: type | None) -> Callable[[int], Any] | None:
    """A function of torch's libraries that takes a number; None if they do not have it."""
    try:
        function = ctypes.PyDLL(torch._C.__file__)[name]
    except (AttributeError, OSError):
        return None
    function.argtypes, function.restype = [ctypes.c_int], result
    return cast(Callable[[int], Any], function)


def _ignored(number: int) -> int:
    """The setting of an MKL that is not there."""
    return number


_set_openmp_threads = _function("omp_set_num_threads", None)
"""OpenMP's setting as torch calls it, which is the calling thread's; None if torch was built without."""

_set_mkl_threads = _function("MKL_Set_Num_Threads_Local", ctypes.c_int)
"""
MKL's setting of the calling thread, which returns the one before; None if torch was built without MKL.

``log`` and ``exp`` of torch are MKL's, which has threads of its own: they wait for another thread at 3,500
numbers, 8 ms where that thread's processor is busy.
"""

SETS_CALLING_THREAD = _set_openmp_threads is not None
"""Whether :func:`on_number_of_threads` leaves other threads as they are."""


@contextlib.contextmanager
def on_number_of_threads(number: int) -> Iterator[None]:
    """
    Let torch's operations in the calling thread use *number* threads while the body runs.

    ``torch.set_num_threads`` also sets the number of threads that begin later, which they keep; it is used
    where torch was built without OpenMP.
    """
    before = torch.get_num_threads()
    set_openmp_threads = _set_openmp_threads or torch.set_num_threads
    set_mkl_threads = _set_mkl_threads or _ignored
    of_mkl = set_mkl_threads(number)
    try:
        set_openmp_threads(number)
        yield
    finally:
        set_openmp_threads(before)
        set_mkl_threads(of_mkl)
