"""Number of threads of a forward."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..decoding.thread_number import on_number_of_threads
from ..decoding.validation import is_whole


def check_threads(threads: Any) -> None:
    """
    Validate a number of threads; None is torch's setting.

    Raises:
        ValueError: *threads* is neither None nor an integer >= 1.
    """
    if threads is not None and (not is_whole(threads) or threads < 1):
        raise ValueError(f"'threads' must be None or a whole number >= 1: got {threads!r}")


@contextlib.contextmanager
def on_threads(threads: int | None) -> Iterator[None]:
    """
    Set torch's number of threads, of the calling thread, while the body runs; None leaves it unchanged.

    Raises:
        ValueError: As :func:`check_threads`.
    """
    if threads is None or threads == torch.get_num_threads():
        yield
        return
    # A decoder's is an attribute, set at any time.
    check_threads(threads)
    with on_number_of_threads(threads):
        yield
