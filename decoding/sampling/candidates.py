"""Candidates: the few tokens left after a truncation."""

import attrs
import torch
from torch import Tensor


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
