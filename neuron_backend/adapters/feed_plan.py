"""What one forward of the protocol asks for, and what has come back so far."""

import attrs
import numpy as np
import torch
from torch import Tensor

from .record import Ints


@attrs.define(eq=False)
class FeedPlan:
    """The tokens that have still to go through the system, and the logits that are wanted of them."""

    begin: Ints
    """First position of each row that has still to be fed, ``[batch]``."""

    end: Ints
    """Where it ends, ``[batch]``."""

    wanted: Ints
    """The position whose logits each column is to hold, ``[batch, columns]``; -1 for none."""

    logits: Tensor
    """``[batch, columns, vocab]`` float32; 0 where nothing is wanted."""

    @classmethod
    def of(cls, ids: Ints, start: Ints, begin: Ints, end: Ints, scored: bool, vocab_size: int) -> "FeedPlan":
        """
        What is to come of a forward.

        Args:
            ids: ``[batch, width]``; -1 is padding.

            start: Position of the first column, ``[batch]``.

            begin: :attr:`begin`.

            end: :attr:`end`.

            scored: Whether every column is scored, rather than the last.

            vocab_size: Logits of a column.
        """
        wanted = np.where(ids >= 0, start[:, None] + np.arange(ids.shape[1]), -1)
        wanted = wanted if scored else wanted[:, -1:]
        return cls(begin, end, wanted, torch.zeros(*wanted.shape, vocab_size))

    @classmethod
    def again(cls, begin: Ints, end: Ints) -> "FeedPlan":
        """Tokens that are to stand in the cache once more, and nothing else."""
        none = np.zeros((len(begin), 0), dtype=np.int64)
        return cls(begin.copy(), end, none, torch.zeros(len(begin), 0, 0))

    @property
    def pending(self) -> Ints:
        """Tokens of each row that have still to be fed, ``[batch]``."""
        return self.end - self.begin

    def deliver(self, row: int, first: int, logits: Tensor) -> None:
        """Take the *logits* ``[n, vocab]`` of *row* after positions *first*, *first* + 1, and so on."""
        at = self.wanted[row] - first
        columns = np.flatnonzero((self.wanted[row] >= 0) & (at >= 0) & (at < len(logits)))
        if len(columns):
            taken = logits[torch.from_numpy(at[columns]), : self.logits.shape[-1]]
            self.logits[row, columns] = taken.to("cpu", torch.float32)
