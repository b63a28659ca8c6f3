"""Short cuts of top-k: the logits are read once, for the maxima of blocks."""

from collections.abc import Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.sampling.candidates import Candidates
from ...decoding.sampling.compiled.operation import Kind, Operation
from ...decoding.sampling.few_tokens import Cell, Few, Floats, Ints
from ...decoding.sampling.short_cuts import Pointwise, register
from ...decoding.sampling.shortlist import shortlist
from ...decoding.sampling.survivors import are_few, candidates
from ..numerics.ranking import kth_per_row
from ..parameter import per_row
from ..truncation.top_k import TopK

_DEPTH = 64
"""Logits per block. The maxima of all blocks take one memory-bound pass."""


@attrs.frozen(eq=False)
class FastTopK:
    """:class:`~decodekit.processors.TopK` without a selection from the whole vocabulary."""

    stage: TopK

    largest: int = attrs.field(init=False)
    """The largest *k* of all rows, at least 1."""

    @largest.default
    def _largest_k(self) -> int:
        return max(int(torch.as_tensor(self.stage.k).max()), 1)

    def narrow(self, logits: Tensor, history: History) -> Tensor | Candidates:
        """See :class:`~decodekit.decoding.sampling.short_cuts.GivesCandidates`."""
        k = per_row("k", self.stage.k, logits)
        count = logits.shape[-1] // _DEPTH
        off = bool((k == 0).any()) if isinstance(k, Tensor) else k == 0
        if off or self.largest * 2 > count:
            return self.stage(logits, history)
        # The k-th largest block maximum is a lower bound of the k-th largest logit: each of k
        # disjoint blocks has a logit of at least that. Blocks are columns of this matrix, so that
        # the maxima vectorise over rows.
        matrix = logits[..., : count * _DEPTH].reshape(*logits.shape[:-1], _DEPTH, count)
        maxima = matrix.amax(dim=-2)
        floor = kth_per_row(maxima, k, self.largest).numpy(force=True)
        highest = maxima.numpy(force=True)
        # Drop -inf even if the floor is -inf.
        floor = np.maximum(floor, np.finfo(floor.dtype).min)
        scores = logits.numpy(force=True)
        if np.isnan(highest.max()) or np.isnan(scores[..., count * _DEPTH :]).any():
            return self.stage(logits, history)
        ids = [_reaching(scores[cell], highest[cell], floor[cell]) for cell in np.ndindex(*floor.shape[:-1])]
        if not are_few(map(len, ids), logits.shape[-1]):
            return self.stage(logits, history)
        return self.among(candidates(logits, ids), history)

    def among(self, left: Candidates, history: History) -> Candidates:
        """See :class:`~decodekit.decoding.sampling.short_cuts.TakesCandidates`."""
        logits = left.logits.numpy(force=True)
        beyond = logits.shape[-1] - self.largest
        if self.stage.ties != "keep" or isinstance(self.stage.k, Tensor) or np.isnan(logits).any():
            return attrs.evolve(left, logits=self.stage(left.logits, history))
        if self.stage.k == 0 or beyond <= 0:
            return left
        kth = np.partition(logits, beyond, axis=-1)[..., beyond : beyond + 1]
        kept = np.where(logits < kth, logits.dtype.type(-np.inf), logits)
        return attrs.evolve(left, logits=torch.from_numpy(kept))

    @property
    def takes_few(self) -> bool:
        """Whether :meth:`to_few` and :meth:`of_few` support these parameters."""
        return self.stage.ties == "keep" and not isinstance(self.stage.k, Tensor) and self.stage.k > 0

    def to_few(self, logits: Floats, before: Sequence[Pointwise], cell: Cell) -> Few | None:
        """See :class:`~decodekit.decoding.sampling.short_cuts.Narrows`."""
        # More than k: the stages *before* may lower some of the largest.
        found = shortlist(logits, self.largest + self.largest // 2 + 2)
        if found is None:
            return None
        few, bound = found
        for stage in before:
            lowered = stage.of_few(few, cell)
            if lowered is None:
                return None
            few, bound = lowered, stage.at_most(bound)
        # No token outside the list may reach the k-th.
        ascending = few.ascending()
        beyond = len(ascending) - self.largest
        return few.without_smallest(beyond) if beyond >= 0 and ascending.item(beyond) > bound else None

    def of_few(self, few: Few, cell: Cell) -> Few | None:
        """See :class:`~decodekit.decoding.sampling.short_cuts.OfFew`."""
        return few.without_smallest(max(0, len(few.ascending()) - self.largest))

    def operation(self) -> Operation:
        """See :class:`~decodekit.decoding.sampling.compiled.operation.HasOperation`."""
        return Operation(Kind.KEEP_LARGEST, count=self.largest)


def _reaching(logits: Floats, maxima: Floats, floor: Floats) -> Ints:
    """
    The ids of the logits ``[vocab]`` that are at least *floor*, ascending.

    Args:
        logits: ``[vocab]``.

        maxima: Block maxima, ``[count]``; blocks below *floor* are skipped.

        floor: ``[1]``.
    """
    count = len(maxima)
    blocks = np.flatnonzero(maxima >= floor)
    depth, which = (logits[: count * _DEPTH].reshape(_DEPTH, count)[:, blocks] >= floor).nonzero()
    rest = np.flatnonzero(logits[count * _DEPTH :] >= floor)
    return np.concatenate([depth * count + blocks[which], rest + count * _DEPTH])


register(TopK, FastTopK)
