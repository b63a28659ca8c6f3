"""Drawing a token from its distribution."""

import math

import attrs
import torch
from attrs import validators
from torch import Tensor

from . import noise
from .history import History


@attrs.frozen(eq=False)
class Sample:
    """
    Draw a token from the softmax of the logits.

    By Gumbel-max: the largest of logit + Gumbel noise is a draw from the softmax (Maddison,
    Tarlow and Minka, 2014, `A* Sampling <https://arxiv.org/abs/1411.0030>`_, section 2). In two
    levels: one Gumbel a block of about √vocab tokens picks a block by its mass, one a token
    inside picks the token. The law is the same, for 2√vocab numbers in place of vocab.

    The noise belongs to the row's stream and to the position, not to the call: a draft and a
    target that face alike logits at one position draw the same token, which is what makes
    speculation agree, and a row draws the same text in any batch.
    """

    seed: int = attrs.field(default=0, validator=validators.instance_of(int))
    """Any integer. Equal seeds, streams and logits give equal text."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Logits ``[batch, width, vocab]`` to ids ``[batch, width]``; all ``-inf`` gives any id."""
        blocks = _in_blocks(logits)
        stream, position = history.stream[:, None, None], history.length[..., None]

        index = torch.arange(blocks.shape[-2])
        mass = blocks.logsumexp(dim=-1) + noise.gumbel(stream, position, noise.BLOCK, index)
        block = mass.argmax(dim=-1, keepdim=True)

        size = blocks.shape[-1]
        within = blocks.gather(-2, block[..., None].expand(*block.shape, size)).squeeze(-2)
        index = block * size + torch.arange(size)
        token = (within + noise.gumbel(stream, position, noise.TOKEN, index)).argmax(dim=-1)
        return block.squeeze(-1) * size + token


def _in_blocks(logits: Tensor) -> Tensor:
    """``[..., vocab]`` to ``[..., blocks, size]`` float64, the last block filled up with ``-inf``."""
    vocab = logits.shape[-1]
    size = math.isqrt(vocab - 1) + 1
    count = -(-vocab // size)
    filled = torch.nn.functional.pad(logits.double(), (0, count * size - vocab), value=-torch.inf)
    return filled.reshape(*logits.shape[:-1], count, size)
