"""The tokens that are still in play."""

import attrs
import torch
from torch import Tensor


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
