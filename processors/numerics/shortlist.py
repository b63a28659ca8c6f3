"""The largest logits and a few more."""

import numpy as np

from ...decoding.sampling.few import Few, Floats

_DEPTH = 32
"""Logits a block. Finding a block's largest is one pass at the speed of memory."""

_LARGEST = 1e15
"""Up to here several stages, each of which scales by a thousand at most, do not overflow."""


def shortlist(logits: Floats, reach: int) -> tuple[Few, np.float32] | None:
    """
    Some tokens, at least *reach* of them, that have larger logits than all others.

    Args:
        logits: ``[vocab]`` float32.

        reach: Of so many disjoint blocks each has a logit that is at least the floor, the largest
            maximum but *reach* - 1.

    Returns:
        The tokens, and the floor, below which all others lie; None where they are many, where there
        are few blocks, or where some logit at the top is out of the ordinary.
    """
    count = len(logits) // _DEPTH
    if reach * 2 > count:
        return None
    size = count * _DEPTH
    # A block is a column of this matrix, so that maxima are taken of whole rows at a time.
    matrix = logits[:size].reshape(_DEPTH, count)
    maxima = np.maximum.reduce(matrix, axis=0)
    largest = maxima.copy()
    largest.partition(count - reach)
    floor: np.float32 = largest[count - reach]
    # NaN is the largest to a maximum, and no comparison with it holds.
    if not (floor > -_LARGEST and np.maximum.reduce(largest[count - reach :]) < _LARGEST):
        return None
    blocks = (maxima >= floor).nonzero()[0]
    values = matrix.take(blocks, axis=1).ravel()
    at = (values >= floor).nonzero()[0]
    depth, which = np.divmod(at, len(blocks))
    depth *= count
    depth += blocks.take(which)
    ids, found = depth, values.take(at)
    if size < len(logits):
        rest = logits[size:]
        if not rest.max() < _LARGEST:
            return None
        more = (rest >= floor).nonzero()[0]
        ids, found = np.concatenate([ids, size + more]), np.concatenate([found, rest[more]])
    if len(ids) > 4 * reach + _DEPTH:
        return None
    return Few(ids, found), floor
