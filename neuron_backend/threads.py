"""On how many threads a forward runs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..decoding.validation import is_whole


def check_threads(threads: Any) -> None:
    """
    Check a number of threads; None is none in particular.

    Raises:
        ValueError: It is neither None nor a whole number >= 1.
    """
    if threads is not None and (not is_whole(threads) or threads < 1):
        raise ValueError(f"'threads' must be None or a whole number >= 1: got {threads!r}")


@contextlib.contextmanager
def on_threads(threads: int | None) -> Iterator[None]:
    """Let torch use so many threads while the body runs; None leaves it as it is."""
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
