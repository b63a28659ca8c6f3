"""Candidates: the few tokens left after a truncation."""

from typing import Protocol, runtime_checkable

import attrs
import torch
from torch import Tensor

from ..history import History


@attrs.frozen(eq=False)
class Candidates:
    """
    The tokens that a processor left, if they are few.

    Later stages then work on a few dozen numbers per column instead of the whole vocabulary.
    """

    ids: Tensor
    """``[batch, width, n]`` int64, ascending in each column, so that ties resolve as in the vocabulary."""

    logits: Tensor
    """``[batch, width, n]``, ``-inf`` where a column has fewer than *n*; ids may repeat there."""

    vocab: int
    """Size of the vocabulary."""

    def dense(self) -> Tensor:
        """``[batch, width, vocab]``: ``-inf`` for all other tokens."""
        whole = self.logits.new_full((*self.logits.shape[:-1], self.vocab), -torch.inf)
        # The maximum, since an id may be repeated at -inf.
        return whole.scatter_reduce_(-1, self.ids, self.logits, "amax")


@runtime_checkable
class GivesCandidates(Protocol):
    """A processor with a short cut that returns candidates, such as a top-k."""

    def narrow(self, logits: Tensor, history: History) -> Tensor | Candidates:
        """The result of a call, as candidates if they are few."""


@runtime_checkable
class TakesCandidates(Protocol):
    """A local processor with a short cut for candidates that is faster than a call on their logits."""

    def among(self, left: Candidates, history: History) -> Candidates:
        """The result of a call for the candidates."""


@runtime_checkable
class SamplesAmong(Protocol):
    """A sampler with a short cut that needs the logits of the candidates only."""

    def among(self, candidates: Candidates, history: History) -> Tensor:
        """The ids that a call on the whole vocabulary samples, ``[batch, width]``."""
