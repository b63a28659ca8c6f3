"""The tokens in a decoder's KV cache."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class CachedTokens:
    """
    The token in each slot of each row, how many slots are valid, and which program wrote each.

    Args:
        rows: The decoder's rows.

        positions: Slots of a row.
    """

    def __init__(self, rows: int, positions: int) -> None:
        self.ids: Ints = np.zeros((rows, positions), dtype=np.int64)
        self.valid: Ints = np.zeros(rows, dtype=np.int64)
        """The number of leading slots of each row that hold the tokens in :attr:`ids`."""

        self.program: Ints = np.zeros_like(self.ids)
        """The program that wrote each slot."""

    def forget(self) -> None:
        """Mark all slots invalid."""
        self.valid[:] = 0

    def common(self, tokens: Ints, ends: Ints) -> Ints:
        """How many leading *tokens* ``[rows, capacity]``, up to *ends*, are cached already, ``[rows]``."""
        rows, reach = len(tokens), int(ends.max(initial=0))
        reach = min(reach, self.ids.shape[1])
        common: Ints = np.minimum(self.valid[:rows], ends)
        differs = self.ids[:rows, :reach] != tokens[:, :reach]
        if differs.any():
            common = np.minimum(common, np.where(differs.any(axis=1), differs.argmax(axis=1), reach))
        return common

    def leading(self, rows: int, program: int) -> Ints:
        """How many leading slots of each row were written by that *program*, ``[rows]``."""
        other = self.program[:rows] != program
        leading: Ints = np.where(other.any(axis=1), other.argmax(axis=1), other.shape[1])
        return leading

    def forget_after(self, row: int, start: int, new: Ints) -> None:
        """Before *new* is fed: unless the same tokens are cached, invalidate all slots from *start* on."""
        valid = int(self.valid[row])
        if start < valid and not np.array_equal(self.ids[row, start:valid][: len(new)], new[: valid - start]):
            self.valid[row] = start

    def remember(self, row: int, start: int, new: Ints, program: int) -> None:
        """After *new* has been fed from *start* on through *program*."""
        end = start + len(new)
        self.ids[row, start:end] = new
        self.program[row, start:end] = program
        self.valid[row] = max(self.valid[row], end)

    def forget_after_each(self, newest: Sequence[tuple[int, int, int]]) -> None:
        """:meth:`forget_after` for one token in each of some rows: row, position and token."""
        for row, position, token in newest:
            if position < self.valid[row] and self.ids[row, position] != token:
                self.valid[row] = position

    def remember_each(self, newest: Sequence[tuple[int, int, int]], program: int) -> None:
        """:meth:`remember` for one token in each of some rows."""
        for row, position, token in newest:
            self.ids[row, position], self.program[row, position] = token, program
            self.valid[row] = max(self.valid[row], position + 1)
