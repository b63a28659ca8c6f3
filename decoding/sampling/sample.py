"""Drawing a token from its distribution."""

import math
from typing import Any, ClassVar

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..history import History
from ..optional_protocols import has_short_cuts
from ..validation import a_whole_number
from . import noise
from .candidates import Candidates
from .exponential_race import ExponentialRace
from .few import DrawFromFew
from .noise import block_size
from .scratch import scratch
from .top_tokens import top2_margin

_CLOSE = 1e-3
"""Far more than what single precision is wrong by in the logarithm of a block's mass, some 1e-5."""


@has_short_cuts
@attrs.frozen(eq=False)
class Sample:
    """
    Draw a token from the softmax of the logits.

    By Gumbel-max: the largest of logit + Gumbel noise is a draw from the softmax (Maddison,
    Tarlow and Minka, 2014, `A* Sampling <https://arxiv.org/abs/1411.0030>`_, section 2). In two
    levels: one Gumbel a block of about √vocab tokens picks a block by its mass, one a token
    inside picks the token. The distribution is the same, for 2√vocab numbers in place of vocab.

    The noise belongs to the row's stream and to the position, not to the call: a draft and a
    target that face alike logits at one position draw the same token, which is what makes
    speculation agree, and a row draws the same text in any batch.
    """

    draws_softmax: ClassVar[bool] = True
    """What a verification that compares distributions has to know."""

    seed: int = attrs.field(default=0, validator=a_whole_number)
    """Any integer. Equal seeds, streams and logits give equal text."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Logits ``[batch, width, vocab]`` to ids ``[batch, width]``; all ``-inf`` gives any id."""
        vocab = logits.shape[-1]
        for_blocks, for_tokens = self.noise(history, vocab)
        block = _clear_argmax(_rough_masses(logits) + for_blocks)
        if block is None:
            block = (_in_blocks(logits).logsumexp(dim=-1) + for_blocks).argmax(dim=-1, keepdim=True)

        index = block * block_size(vocab) + torch.arange(block_size(vocab))
        within = logits.gather(-1, index.clamp(max=vocab - 1)).double()
        # The last block may reach beyond the vocabulary.
        token = (within + for_tokens).masked_fill_(index >= vocab, -torch.inf).argmax(dim=-1, keepdim=True)
        return index.gather(-1, token).squeeze(-1)

    def among(self, candidates: Candidates, history: History) -> Tensor:
        """What a call on all of the vocabulary draws, from the tokens that are left of it."""
        size = block_size(candidates.vocab)
        for_blocks, for_tokens = self.noise(history, candidates.vocab)
        ids, logits, at_places = candidates.ids.numpy(), candidates.logits.numpy(), for_tokens.numpy()
        block_of = ids // size
        rough = _rough_masses_among(logits, block_of, for_blocks.shape[-1]) + for_blocks.numpy()
        second, first = np.partition(rough, -2)[..., -2:].T if rough.shape[-1] > 1 else (-np.inf, rough.T)
        # A comparison with NaN is false: nothing is clear about garbage.
        if not (first - second > _CLOSE).all():
            return self(candidates.dense(), history)
        block = rough.argmax(axis=-1)
        drawn = np.empty(block.shape, dtype=np.int64)
        for cell in np.ndindex(*drawn.shape):
            # A dozen tokens of many: those of one block.
            inside = np.flatnonzero(block_of[cell] == block[cell])
            place = ids[cell][inside] - block[cell] * size
            score = logits[cell][inside] + at_places[cell][place]
            drawn[cell] = ids[cell][inside[score.argmax()]]
        return torch.from_numpy(drawn)

    def from_few(self) -> DrawFromFew:
        """See :class:`~.few.DrawsFromFew`."""
        return ExponentialRace()

    def top_choices(self, logits: Tensor, history: History, n: int) -> Tensor:
        """
        The *n* tokens that this position's noise favours ``[batch, width, n]``, first what a call draws.

        What another model that is much the same draws under the same noise is likely to be among
        them. Where fewer than *n* are possible, impossible ones follow.
        """
        vocab = logits.shape[-1]
        size = block_size(vocab)
        for_blocks, for_tokens = self.noise(history, vocab)
        blocks = _in_blocks(logits)
        of_block = blocks.logsumexp(dim=-1) + for_blocks
        # A token of the n-th best block at best comes n-th.
        order = of_block.argsort(dim=-1, descending=True, stable=True)[..., :n]
        within = blocks.gather(-2, order[..., None].expand(*order.shape, size)) + for_tokens[..., None, :]
        # How much the noise would have to be kinder to a token for it to be drawn: in both levels.
        behind = within - within.amax(dim=-1, keepdim=True)
        behind += (of_block.gather(-1, order) - of_block.amax(dim=-1, keepdim=True))[..., None]
        ids = order[..., None] * size + torch.arange(size)
        # What is impossible comes last, and what is no token not at all.
        lowest = torch.finfo(behind.dtype).min
        behind = behind.nan_to_num(nan=lowest, neginf=lowest).masked_fill(ids >= vocab, -torch.inf)
        best = behind.flatten(-2).argsort(dim=-1, descending=True, stable=True)[..., :n]
        return ids.flatten(-2).gather(-1, best)

    def gap(self, logits: Tensor, history: History) -> Tensor:
        """
        How far each column's choice is ahead, ``[batch, width]`` float64.

        The smaller of two leads: of the drawn block over the next, of the drawn token over the
        next in its block. The choice stands as long as no logit changes by half of that.
        """
        for_blocks, for_tokens = self.noise(history, logits.shape[-1])
        blocks = _in_blocks(logits)
        masses = blocks.logsumexp(dim=-1) + for_blocks
        drawn = masses.argmax(dim=-1)[..., None, None].expand(*masses.shape[:-1], 1, blocks.shape[-1])
        within = blocks.gather(-2, drawn).squeeze(-2) + for_tokens
        return top2_margin(masses).minimum(top2_margin(within))

    def noise(self, history: History, vocab: int) -> tuple[Tensor, Tensor]:
        """
        The Gumbel numbers of each column.

        A token's number is that of its place in the block, whichever block: only one is drawn
        from.

        Returns:
            One a block, ``[batch, width, blocks]``, and one a place, ``[batch, width, size]``,
            float64.
        """
        size = block_size(vocab)
        numbers = noise.gumbel(
            history.random_stream.numpy()[:, None, None, None],
            history.length.numpy()[..., None, None],
            _PURPOSES,
            np.arange(size),
        )
        return numbers[..., 0, : -(-vocab // size)], numbers[..., 1, :]


_PURPOSES = np.array([[noise.BLOCK], [noise.TOKEN]])


def _rough_masses(logits: Tensor) -> Tensor:
    """The logarithms of the blocks' masses ``[..., blocks]``, up to a constant, in the logits' precision."""
    vocab = logits.shape[-1]
    size = block_size(vocab)
    bound = torch.finfo(logits.dtype).max
    peak = logits.amax(dim=-1, keepdim=True).clamp_(-bound, bound)
    # By powers of 2, which torch has several times as fast as those of e.
    relative = torch.sub(logits, peak, out=scratch(logits, "masses")).mul_(math.log2(math.e)).exp2_()
    whole = vocab - vocab % size
    masses = relative[..., :whole].reshape(*logits.shape[:-1], -1, size).sum(dim=-1)
    if whole < vocab:
        masses = torch.cat([masses, relative[..., whole:].sum(dim=-1, keepdim=True)], dim=-1)
    return masses.double().log_()


def _rough_masses_among(
    logits: NDArray[np.floating[Any]], block_of: NDArray[np.int64], blocks: int
) -> NDArray[np.float64]:
    """As of all of the vocabulary, of candidates' logits, given the block that each of them is of."""
    shape = (*logits.shape[:-1], blocks)
    # All columns' blocks in one row, to be counted together.
    first = np.arange(0, math.prod(shape), blocks).reshape(*logits.shape[:-1], 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.exp(logits - logits.max(axis=-1, keepdims=True))
        masses = np.bincount((block_of + first).ravel(), relative.ravel(), minlength=math.prod(shape))
        return np.log(masses).reshape(shape)


def _clear_argmax(scores: Tensor) -> Tensor | None:
    """Where the largest of ``[..., n]`` stands, ``[..., 1]``; None if somewhere another comes close."""
    if scores.shape[-1] == 1:
        return torch.zeros_like(scores, dtype=torch.int64)
    largest = scores.topk(2, dim=-1)
    gap = largest.values[..., 0] - largest.values[..., 1]
    # A comparison with NaN is false: nothing is clear about garbage.
    return largest.indices[..., :1] if bool((gap > _CLOSE).all()) else None


def _in_blocks(logits: Tensor) -> Tensor:
    """``[..., vocab]`` to ``[..., blocks, size]`` float64, the last block filled up with ``-inf``."""
    vocab = logits.shape[-1]
    size = block_size(vocab)
    filled = torch.nn.functional.pad(logits.double(), (0, -vocab % size), value=-torch.inf)
    return filled.reshape(*logits.shape[:-1], -1, size)
