"""Superset of the largest logits, without a sort."""

import numpy as np

from .few_tokens import Few, Floats

_DEPTH = 32
"""Logits per block. The maxima of all blocks take one memory-bound pass."""

_LARGEST = 1e15
"""Bound below which several stages, each scaling by at most 1000, do not overflow."""


def shortlist(logits: Floats, reach: int) -> tuple[Few, np.float32] | None:
    """
    At least *reach* tokens with larger logits than all others.

    Args:
        logits: ``[vocab]`` float32.

        reach: Minimum number of tokens. The floor is the *reach*-th largest block maximum: that
            many disjoint blocks have a logit of at least the floor.

    Returns:
        The tokens and the floor, an upper bound of all other logits; None if there are too many
        tokens, too few blocks, or a top logit is NaN or too large.
    """
    count = len(logits) // _DEPTH
    if reach * 2 > count:
        return None
    size = count * _DEPTH
    # Blocks are columns of this matrix, so that the maxima vectorise over rows.
    matrix = logits[:size].reshape(_DEPTH, count)
    maxima = np.maximum.reduce(matrix, axis=0)
    largest = maxima.copy()
    largest.partition(count - reach)
    floor: np.float32 = largest[count - reach]
    # np.maximum propagates NaN, and comparisons with NaN are False.
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
