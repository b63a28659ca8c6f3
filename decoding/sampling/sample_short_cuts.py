"""Short cuts of random sampling: block masses in single precision, where that is sure to suffice."""

import math
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..history import History
from .candidates import Candidates
from .exponential_race import ExponentialRace
from .noise import block_size
from .sample import Sample, peak_of, refuse_other_seed, token_in_block
from .scratch import scratch
from .short_cuts import DrawFromFew, register

_CLOSE = 1e-3
"""Far above the error of single precision in the logarithm of a block's mass, about 1e-5."""


@attrs.frozen(eq=False)
class SampleShortCuts:
    """:class:`~.sample.Sample` from the whole vocabulary, among candidates, and from a few tokens."""

    sampler: Sample

    def sample(self, logits: Tensor, history: History) -> Tensor:
        """See :class:`~.short_cuts.SamplesFaster`."""
        refuse_other_seed(self.sampler)
        for_blocks, for_tokens = self.sampler.noise(history, logits.shape[-1])
        peak = peak_of(logits)
        block = _clear_argmax(_rough_masses(logits, peak) + for_blocks)
        if block is None:
            return self.sampler(logits, history)
        return token_in_block(logits, peak, block, for_tokens)

    def among(self, candidates: Candidates, history: History) -> Tensor:
        """See :class:`~.short_cuts.SamplesAmong`."""
        size = block_size(candidates.vocab)
        for_blocks, for_tokens = self.sampler.noise(history, candidates.vocab)
        ids, logits, at_places = candidates.ids.numpy(), candidates.logits.numpy(), for_tokens.numpy()
        block_of = ids // size
        rough = _rough_masses_among(logits, block_of, for_blocks.shape[-1]) + for_blocks.numpy()
        second, first = np.partition(rough, -2)[..., -2:].T if rough.shape[-1] > 1 else (-np.inf, rough.T)
        # Comparisons with NaN are false: NaN is never clear.
        if not (first - second > _CLOSE).all():
            return self.sampler(candidates.dense(), history)
        block, peak = rough.argmax(axis=-1), peak_of(candidates.logits)[..., 0].numpy()
        drawn = np.empty(block.shape, dtype=np.int64)
        for cell in np.ndindex(*drawn.shape):
            # The few tokens of the sampled block.
            inside = np.flatnonzero(block_of[cell] == block[cell])
            place = ids[cell][inside] - block[cell] * size
            score = (logits[cell][inside].astype(np.float64) - peak[cell]) + at_places[cell][place]
            drawn[cell] = ids[cell][inside[score.argmax()]]
        return torch.from_numpy(drawn)

    def from_few(self) -> DrawFromFew:
        """See :class:`~.short_cuts.DrawsFromFew`."""
        return ExponentialRace()


def _rough_masses(logits: Tensor, peak: Tensor) -> Tensor:
    """The logarithms of the blocks' masses ``[..., blocks]``, up to a constant, in the logits' precision."""
    vocab = logits.shape[-1]
    size = block_size(vocab)
    # Powers of 2, which torch computes several times as fast as powers of e.
    relative = torch.sub(logits, peak, out=scratch(logits, "masses")).mul_(math.log2(math.e)).exp2_()
    whole = vocab - vocab % size
    masses = relative[..., :whole].reshape(*logits.shape[:-1], -1, size).sum(dim=-1)
    if whole < vocab:
        masses = torch.cat([masses, relative[..., whole:].sum(dim=-1, keepdim=True)], dim=-1)
    return masses.double().log_()


def _rough_masses_among(
    logits: NDArray[np.floating[Any]], block_of: NDArray[np.int64], blocks: int
) -> NDArray[np.float64]:
    """:func:`_rough_masses` from candidates' logits, given the block of each candidate."""
    shape = (*logits.shape[:-1], blocks)
    # Number the blocks of all columns, for a single bincount.
    first = np.arange(0, math.prod(shape), blocks).reshape(*logits.shape[:-1], 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.exp(logits - logits.max(axis=-1, keepdims=True))
        masses = np.bincount((block_of + first).ravel(), relative.ravel(), minlength=math.prod(shape))
        return np.log(masses).reshape(shape)


def _clear_argmax(scores: Tensor) -> Tensor | None:
    """The argmax of ``[..., n]``, ``[..., 1]``; None if another value is close to it anywhere."""
    if scores.shape[-1] == 1:
        return torch.zeros_like(scores, dtype=torch.int64)
    largest = scores.topk(2, dim=-1)
    gap = largest.values[..., 0] - largest.values[..., 1]
    # Comparisons with NaN are false: NaN is never clear.
    return largest.indices[..., :1] if bool((gap > _CLOSE).all()) else None


register(Sample, SampleShortCuts)
