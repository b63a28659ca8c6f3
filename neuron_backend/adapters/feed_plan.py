"""Tokens that one forward still has to feed, and the logits collected for it so far."""

import attrs
import numpy as np
import torch
from torch import Tensor

from .cache_record import Ints


@attrs.define(eq=False)
class FeedPlan:
    """The positions that are still to be fed to the system, and the logits that are wanted."""

    begin: Ints
    """First position of each row that is still to be fed, ``[batch]``."""

    end: Ints
    """Position after the last that is to be fed, ``[batch]``."""

    wanted: Ints
    """The position whose logits each column holds, ``[batch, columns]``; -1 for none."""

    logits: Tensor
    """``[batch, columns, vocab]`` float32; 0 where nothing is wanted."""

    @classmethod
    def of(cls, ids: Ints, start: Ints, begin: Ints, end: Ints, scored: bool, vocab_size: int) -> "FeedPlan":
        """
        Plan of a forward.

        Args:
            ids: ``[batch, width]``; -1 is padding.

            start: Position of the first column, ``[batch]``.

            begin: :attr:`begin`.

            end: :attr:`end`.

            scored: Whether every column is scored, rather than the last.

            vocab_size: Logits per column.
        """
        wanted = np.where(ids >= 0, start[:, None] + np.arange(ids.shape[1]), -1)
        wanted = wanted if scored else wanted[:, -1:]
        return cls(begin, end, wanted, torch.zeros(*wanted.shape, vocab_size, dtype=torch.float32))

    @classmethod
    def refeed(cls, begin: Ints, end: Ints) -> "FeedPlan":
        """Plan that feeds tokens again and wants no logits."""
        none = np.zeros((len(begin), 0), dtype=np.int64)
        return cls(begin.copy(), end, none, torch.zeros(len(begin), 0, 0, dtype=torch.float32))

    @property
    def pending(self) -> Ints:
        """Tokens of each row that are still to be fed, ``[batch]``."""
        return self.end - self.begin

    def deliver(self, row: int, first: int, logits: Tensor) -> None:
        """Store the *logits* ``[n, vocab]`` of *row* at positions *first*, *first* + 1, and so on."""
        at = self.wanted[row] - first
        columns = np.flatnonzero((self.wanted[row] >= 0) & (at >= 0) & (at < len(logits)))
        if len(columns):
            taken = logits[torch.from_numpy(at[columns]), : self.logits.shape[-1]]
            self.logits[row, columns] = taken.to("cpu", torch.float32)
