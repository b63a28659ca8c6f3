"""The tokens that are still in play."""

from typing import Protocol, runtime_checkable

import attrs
import torch
from torch import Tensor

from ..history import History


@attrs.frozen(eq=False)
class Candidates:
    """
    What a processor left of the vocabulary, when that is little of it.

    Everything that follows then works on a few dozen numbers a column in place of all of them.
    """

    ids: Tensor
    """``[batch, width, n]`` int64, ascending in each column, so that ties fall as in the whole."""

    logits: Tensor
    """``[batch, width, n]``, ``-inf`` where a column has fewer than *n*; ids may repeat there."""

    vocab: int
    """How many tokens there are in all."""

    def dense(self) -> Tensor:
        """``[batch, width, vocab]``: ``-inf`` for all tokens but these."""
        whole = self.logits.new_full((*self.logits.shape[:-1], self.vocab), -torch.inf)
        # The largest counts, since an id may be repeated at -inf.
        return whole.scatter_reduce_(-1, self.ids, self.logits, "amax")


@runtime_checkable
class GivesCandidates(Protocol):
    """A processor with a short cut that finds the few tokens that it leaves, such as a top-k."""

    def narrow(self, logits: Tensor, history: History) -> Tensor | Candidates:
        """What a call gives, as candidates where they are few."""
        ...


@runtime_checkable
class TakesCandidates(Protocol):
    """A local processor with a short cut that is faster on candidates than a call on their logits."""

    def among(self, left: Candidates, history: History) -> Candidates:
        """What a call makes of the tokens that are left."""
        ...


@runtime_checkable
class SamplesAmong(Protocol):
    """A sampler with a short cut that needs no logits but those of the tokens that are left."""

    def among(self, candidates: Candidates, history: History) -> Tensor:
        """What a call on all of the vocabulary chooses, ``[batch, width]``."""
        ...
