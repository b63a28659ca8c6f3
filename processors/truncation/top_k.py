"""Top-k filtering."""

from collections.abc import Sequence
from typing import Any, ClassVar

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.history import History
from ...decoding.optional_protocols import has_short_cuts
from ...decoding.sampling.candidates import Candidates
from ...decoding.sampling.few_tokens import Cell, Few, Pointwise
from ..chain import Composable
from ..numerics.shortlist import shortlist
from ..numerics.survivors import Ints, are_few, candidates
from ..parameter import as_integers, integer, is_scalar, one_of, per_row

Floats = NDArray[np.floating[Any]]

_DEPTH = 64
"""Logits per block. The maxima of all blocks take one memory-bound pass."""


@has_short_cuts
@attrs.frozen(eq=False)
class TopK(Composable):
    """
    Keep the *k* largest logits of each row.

    Typically 20-100; 0 is off, and a *k* beyond the vocabulary keeps everything.

    Fan, Lewis and Dauphin, 2018, `Hierarchical Neural Story Generation
    <https://arxiv.org/abs/1805.04833>`_.
    """

    keeps_argmax: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    # neuronx-cc supports a 2-D top-k over some 16,000 columns; this one would become a sort.
    device_safe: ClassVar[bool] = False

    k: int | Tensor = attrs.field(
        converter=as_integers, validator=integer(">= 0 (0 is off)", lambda k: k >= 0)
    )
    """One for all rows, or ``[batch]``."""

    ties: str = attrs.field(default="keep", validator=one_of("keep", "first"))
    """
    Tokens tied with the k-th: ``"keep"`` keeps them all, possibly more than *k* (Hugging Face,
    vLLM); ``"first"`` keeps the lowest ids, exactly *k*.
    """

    _largest: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        # A graph needs the largest k as a constant.
        largest = int(self.k.max()) if isinstance(self.k, Tensor) else self.k
        object.__setattr__(self, "_largest", max(largest, 1))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask all but the *k* largest of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.k, 0):
            return logits
        k = per_row("k", self.k, logits)
        kth = self._kth(logits, k)
        if self.ties == "keep":
            return logits.masked_fill(logits < kth, -torch.inf)
        return logits.masked_fill(_beyond(logits, kth, k), -torch.inf)

    def narrow(self, logits: Tensor, history: History) -> Tensor | Candidates:
        """Same as a call, as candidates if few tokens are left; on the host."""
        k = per_row("k", self.k, logits)
        count = logits.shape[-1] // _DEPTH
        off = bool((k == 0).any()) if isinstance(k, Tensor) else k == 0
        if off or self._largest * 2 > count:
            return self(logits, history)
        # The k-th largest block maximum is a lower bound of the k-th largest logit: each of k
        # disjoint blocks has a logit of at least that. Blocks are columns of this matrix, so that
        # the maxima vectorise over rows.
        matrix = logits[..., : count * _DEPTH].reshape(*logits.shape[:-1], _DEPTH, count)
        maxima = matrix.amax(dim=-2)
        floor = self._kth(maxima, k).numpy(force=True)
        highest = maxima.numpy(force=True)
        # Drop -inf even if the floor is -inf.
        floor = np.maximum(floor, np.finfo(floor.dtype).min)
        scores = logits.numpy(force=True)
        if np.isnan(highest.max()) or np.isnan(scores[..., count * _DEPTH :]).any():
            return self(logits, history)
        ids = [_reaching(scores[cell], highest[cell], floor[cell]) for cell in np.ndindex(*floor.shape[:-1])]
        if not are_few(map(len, ids), logits.shape[-1]):
            return self(logits, history)
        return self.among(candidates(logits, ids), history)

    def among(self, left: Candidates, history: History) -> Candidates:
        """Same as a call on the remaining candidates; on the host."""
        logits = left.logits.numpy(force=True)
        beyond = logits.shape[-1] - self._largest
        if self.ties != "keep" or isinstance(self.k, Tensor) or np.isnan(logits).any():
            return attrs.evolve(left, logits=self(left.logits, history))
        if self.k == 0 or beyond <= 0:
            return left
        kth = np.partition(logits, beyond, axis=-1)[..., beyond : beyond + 1]
        kept = np.where(logits < kth, logits.dtype.type(-np.inf), logits)
        return attrs.evolve(left, logits=torch.from_numpy(kept))

    @property
    def takes_few(self) -> bool:
        """Whether :meth:`to_few` and :meth:`of_few` support these parameters."""
        return self.ties == "keep" and not isinstance(self.k, Tensor) and self.k > 0

    def to_few(self, logits: Floats, before: Sequence[Pointwise], cell: Cell) -> Few | None:
        """See :class:`~decodekit.decoding.sampling.few_tokens.Narrows`."""
        # More than k: the stages *before* may lower some of the largest.
        found = shortlist(logits, self._largest + self._largest // 2 + 2)
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
        beyond = len(ascending) - self._largest
        return few.without_smallest(beyond) if beyond >= 0 and ascending.item(beyond) > bound else None

    def of_few(self, few: Few, cell: Cell) -> Few | None:
        """See :class:`~decodekit.decoding.sampling.few_tokens.Pointwise`."""
        return few.without_smallest(max(0, len(few.ascending()) - self._largest))

    def _kth(self, logits: Tensor, k: int | Tensor) -> Tensor:
        """The k-th largest logit of each column, ``[batch, width, 1]``; ``-inf`` in rows with k = 0."""
        largest = logits.topk(min(self._largest, logits.shape[-1]), dim=-1).values
        if not isinstance(k, Tensor):
            return largest[..., -1:]
        last = k.clamp(1, largest.shape[-1]) - 1
        return largest.gather(-1, last.expand(-1, logits.shape[1], 1)).masked_fill(k == 0, -torch.inf)


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


def _beyond(logits: Tensor, kth: Tensor, k: int | Tensor) -> Tensor:
    """Mask of tokens below the k-th logit, or tied with it beyond the *k* lowest ids."""
    tied = logits == kth
    room = k - (logits > kth).sum(dim=-1, keepdim=True)
    # A row with k = 0 has no k-th logit.
    return (logits < kth) | (tied & (tied.cumsum(dim=-1) > room) & (kth > -torch.inf))
