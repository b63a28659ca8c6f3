"""Calls that need a deep stack, such as those of a compiler that follows references by recursion."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LEAST = 2**24
"""Bytes. Threads have 512 KiB by default on macOS."""

_lock = threading.Lock()
"""Guards the size of new stacks, which is the process's."""


def with_deep_stack(call: Callable[[], T], size: int) -> T:
    """
    The result of *call*, made in a thread with a stack of at least *size* bytes.

    Memory is taken only for what is used of it.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="deep stack", daemon=True)
    with _lock:
        before = threading.stack_size(-(-max(size, _LEAST) // 2**16) * 2**16)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    for error in errors:
        raise error
    return results[0]
