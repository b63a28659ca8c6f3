"""Finding the largest of many."""

import torch
from torch import Tensor

_DEPTH = 64
"""Logits a block. Finding a block's largest is one pass at the speed of memory."""


def pool(logits: Tensor, blocks: int) -> tuple[Tensor, Tensor, Tensor]:
    """
    A few logits that the largest are certainly among.

    The vocabulary is cut into blocks; the *blocks* with the largest maxima are taken whole. So
    the *blocks* largest values of all are in the pool, and every token above the largest
    maximum of the blocks left out.

    Args:
        logits: ``[batch, width, vocab]``.

        blocks: How many blocks to take.

    Returns:
        The logits taken, ``[batch, width, n]``; their ids, the same shape; and what bounds the
        logits left out, ``[batch, width, 1]``, ``-inf`` if none is.
    """
    vocab = logits.shape[-1]
    count = vocab // _DEPTH
    if count <= 2 * blocks:
        ids = torch.arange(vocab, device=logits.device).expand(logits.shape)
        return logits, ids, logits.new_full((*logits.shape[:-1], 1), -torch.inf)
    # A block is a column of this matrix, so that maxima are taken of whole rows at a time.
    matrix = logits[..., : count * _DEPTH].unflatten(-1, (_DEPTH, count))
    maxima = matrix.amax(dim=-2).topk(blocks + 1, dim=-1)
    taken = maxima.indices[..., None, :-1].expand(-1, -1, _DEPTH, -1)
    first = torch.arange(0, count * _DEPTH, count, device=logits.device)[:, None]
    rest = torch.arange(count * _DEPTH, vocab, device=logits.device).expand(*logits.shape[:-1], -1)
    values = torch.cat([matrix.gather(-1, taken).flatten(-2), logits[..., count * _DEPTH :]], dim=-1)
    ids = torch.cat([(taken + first).flatten(-2), rest], dim=-1)
    return values, ids, maxima.values[..., -1:]
