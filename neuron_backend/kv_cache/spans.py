"""
Spans: how many leading positions of the cache a forward attends to (KV buckets).

A program for the first 128 positions does not read the rest of the cache, so early tokens of a long row cost
no more than those of a short one.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ...decoding.validation import as_tuple

SHORTEST = 128


def powers_of_two(first: int, last: int) -> tuple[int, ...]:
    """
    *first* and its doublings below *last*, then *last*.

    >>> powers_of_two(128, 1000)
    (128, 256, 512, 1000)
    """
    sizes = []
    while first < last:
        sizes.append(first)
        first *= 2
    return (*sizes, last)


def decoder_spans(spans: Sequence[int] | None, max_length: int) -> tuple[int, ...]:
    """
    Validated *spans*; powers of two from 128 if None.

    Raises:
        ValueError: *spans* are not ascending, or the last is not *max_length*.

        TypeError: *spans* is not a sequence.
    """
    if spans is None:
        return powers_of_two(SHORTEST, max_length)
    spans = as_tuple("spans", spans)
    whole = all(isinstance(span, int) and not isinstance(span, bool) and span >= 1 for span in spans)
    if not whole or not spans or list(spans) != sorted(set(spans)) or spans[-1] != max_length:
        raise ValueError(f"'spans' must be ascending and end with max_length = {max_length}: got {spans}")
    return spans


def smallest_span(spans: Sequence[int], end: int, span: int | None) -> int:
    """
    *span* if given, else the smallest of *spans* that is >= *end*.

    Raises:
        ValueError: *span* is not one of *spans*, or is less than *end*; or no span holds *end* positions.
    """
    if end > spans[-1]:
        raise ValueError(f"tokens must be at positions below {spans[-1]}: got position {end - 1}")
    if span is None:
        return next(size for size in spans if size >= end)
    if span not in spans or span < end:
        raise ValueError(f"'span' must be one of {tuple(spans)} and hold {end} positions: got {span!r}")
    return span


def end_position(ids: Tensor, cache_pos: Tensor) -> int:
    """1 + the last position of a token in ``[batch, width]`` *ids*; 0 if all are padding."""
    tokens = ids.numpy()
    positions = cache_pos.numpy()[:, None] + np.arange(tokens.shape[1])
    return int(np.where(tokens >= 0, positions, -1).max()) + 1
