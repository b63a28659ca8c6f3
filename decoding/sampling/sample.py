"""Random sampling from the softmax."""

from typing import ClassVar

import attrs
import numpy as np
import torch
from attrs import validators
from torch import Tensor

from ..history import History
from ..validation import a_whole_number, as_whole
from . import noise
from .noise import block_size
from .short_cuts import register_module
from .top_tokens import top2_margin


@attrs.frozen(eq=False)
class Sample:
    """
    Sample a token from the softmax of the logits.

    By Gumbel-max: the argmax of logit + Gumbel noise is a sample from the softmax (Maddison,
    Tarlow and Minka, 2014, `A* Sampling <https://arxiv.org/abs/1411.0030>`_, section 2). In two
    levels: one Gumbel number per block of about √vocab tokens selects a block by its mass, one per token
    inside selects the token. The distribution is the same, with 2√vocab numbers instead of vocab.

    The noise depends on the row's random stream and the position, not on the call: a draft and a
    target with similar logits at one position sample the same token, so draft tokens are accepted, and
    a row samples the same text in any batch.
    """

    draws_softmax: ClassVar[bool] = True
    """Required by verifications that compare distributions."""

    row_independent: ClassVar[bool] = True
    """Rows of several requests may be sampled together: the seed is in their random streams."""

    seed: int | None = attrs.field(
        default=None, converter=as_whole, validator=validators.optional(a_whole_number)
    )
    """
    Any integer. Equal seeds, streams and logits give equal text. None: a generator draws a fresh one for each
    call and reports it, as ``result.seed``: ``Sample(seed=result.seed)`` gives the same text again.
    """

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """
        Logits ``[batch, width, vocab]`` to ids ``[batch, width]``; all ``-inf`` gives any id.

        Raises:
            ValueError: It is called by another sampler, whose seed is another: the streams have that one.
        """
        refuse_other_seed(self)
        for_blocks, for_tokens = self.noise(history, logits.shape[-1])
        block = (_in_blocks(logits).logsumexp(dim=-1) + for_blocks).argmax(dim=-1, keepdim=True)
        return token_in_block(logits, peak_of(logits), block, for_tokens)

    def top_choices(self, logits: Tensor, history: History, n: int) -> Tensor:
        """
        The *n* tokens that this position's noise favours ``[batch, width, n]``, the sampled one first.

        A similar model's sample under the same noise is likely to be among them. If fewer than *n*
        tokens are possible, impossible ones follow.
        """
        vocab = logits.shape[-1]
        size = block_size(vocab)
        for_blocks, for_tokens = self.noise(history, vocab)
        blocks = _in_blocks(logits)
        of_block = blocks.logsumexp(dim=-1) + for_blocks
        # A token of the n-th best block ranks at best n-th.
        order = of_block.argsort(dim=-1, descending=True, stable=True)[..., :n]
        within = blocks.gather(-2, order[..., None].expand(*order.shape, size)) + for_tokens[..., None, :]
        # The additional noise that a token would need to be sampled, in both levels.
        behind = within - within.amax(dim=-1, keepdim=True)
        behind += (of_block.gather(-1, order) - of_block.amax(dim=-1, keepdim=True))[..., None]
        ids = order[..., None] * size + torch.arange(size)
        # Impossible tokens come last; padding beyond the vocabulary not at all.
        lowest = torch.finfo(behind.dtype).min
        behind = behind.nan_to_num(nan=lowest, neginf=lowest).masked_fill(ids >= vocab, -torch.inf)
        best = behind.flatten(-2).argsort(dim=-1, descending=True, stable=True)[..., :n]
        return ids.flatten(-2).gather(-1, best)

    def gap(self, logits: Tensor, history: History) -> Tensor:
        """
        The margin of each column's token over the next, ``[batch, width]`` float64.

        The smaller of two margins: of the sampled block over the next, and of the sampled token over
        the next in its block. The token does not change as long as no logit changes by half of it.
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

        All blocks share the numbers of the tokens, since only one block is sampled from.

        Returns:
            One per block, ``[batch, width, blocks]``, and one per index in a block, ``[batch, width,
            size]``, float64.
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


def refuse_other_seed(sampler: Sample) -> None:
    """Raise ``ValueError`` if the caller is another sampler, whose seed is another than *sampler*'s."""
    folded = noise.FOLDED_SEED.get()
    if sampler.seed and folded not in (None, sampler.seed):
        raise ValueError(
            f"a sampler that calls {sampler!r} must have an attribute 'seed' of {sampler.seed}, which a "
            f"generator folds into the random streams: got seed {folded}. Or let it call Sample()"
        )


def peak_of(logits: Tensor) -> Tensor:
    """
    The largest logit of each column, ``[..., 1]``, as a finite number.

    Noise is added to the differences from it: to the large logits themselves it would be rounded off.
    """
    # With NaN in a column, only the block that holds it shall have a mass of NaN.
    return logits.amax(dim=-1, keepdim=True).nan_to_num_(nan=0.0)


def token_in_block(logits: Tensor, peak: Tensor, block: Tensor, for_tokens: Tensor) -> Tensor:
    """
    Sample a token of the sampled block in each column.

    Args:
        logits: ``[batch, width, vocab]``.

        peak: Their :func:`peak_of`.

        block: ``[batch, width, 1]``.

        for_tokens: A Gumbel number per index in a block, ``[batch, width, size]``.

    Returns:
        Ids ``[batch, width]``.
    """
    vocab = logits.shape[-1]
    index = block * block_size(vocab) + torch.arange(block_size(vocab))
    within = logits.gather(-1, index.clamp(max=vocab - 1)).double() - peak
    # The last block may reach beyond the vocabulary.
    token = (within + for_tokens).masked_fill_(index >= vocab, -torch.inf).argmax(dim=-1, keepdim=True)
    return index.gather(-1, token).squeeze(-1)


def _in_blocks(logits: Tensor) -> Tensor:
    """``[..., vocab]`` less the peak, as ``[..., blocks, size]`` float64, padded with ``-inf``."""
    vocab = logits.shape[-1]
    size = block_size(vocab)
    relative = logits.double() - peak_of(logits)
    filled = torch.nn.functional.pad(relative, (0, -vocab % size), value=-torch.inf)
    return filled.reshape(*logits.shape[:-1], -1, size)


register_module(f"{__package__}.sample_short_cuts")
