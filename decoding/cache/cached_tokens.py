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
        self.valid = [0] * rows
        """The number of leading slots of each row that hold the tokens in :attr:`ids`."""

        self.program: Ints = np.zeros_like(self.ids)
        """The program that wrote each slot."""

    def forget(self) -> None:
        """Mark all slots invalid."""
        self.valid = [0] * len(self.valid)

    def common(self, row: int, tokens: Ints, most: int) -> int:
        """How many leading *tokens*, at most *most*, are cached in *row*."""
        reach = min(self.valid[row], most)
        cached, wanted = self.ids[row, :reach], tokens[:reach]
        # As bytes, equal arrays are recognised several times as fast.
        if cached.tobytes() == wanted.tobytes():
            return reach
        return int((cached != wanted).argmax())

    def leading(self, row: int, program: int) -> int:
        """How many leading slots of *row* were written by that *program*."""
        other = self.program[row] != program
        return int(other.argmax()) if other.any() else len(other)

    def forget_after(self, row: int, start: int, new: Ints) -> None:
        """Before *new* is fed: unless the same tokens are cached, invalidate all slots from *start* on."""
        valid = self.valid[row]
        if start < valid and not np.array_equal(self.ids[row, start:valid][: len(new)], new[: valid - start]):
            self.valid[row] = start

    def forget_from(self, row: int, start: int) -> None:
        """Before a token that is not known yet is fed to slot *start*."""
        self.valid[row] = min(self.valid[row], start)

    def remember(self, row: int, start: int, new: Ints, program: int) -> None:
        """After *new* has been fed from *start* on through *program*."""
        end = start + len(new)
        self.ids[row, start:end] = new
        self.program[row, start:end] = program
        if end > self.valid[row]:
            self.valid[row] = end

    def copy(self, source: int, row: int, upto: int) -> None:
        """After the first *upto* slots of *source* were copied to *row*."""
        self.ids[row, :upto] = self.ids[source, :upto]
        self.program[row, :upto] = self.program[source, :upto]
        self.valid[row] = upto

    def rearrange(self, source: Sequence[int], valid: Sequence[int]) -> None:
        """After each row became a copy of the row *source* names, whose *valid* slots were these before."""
        self.ids, self.program = self.ids[source], self.program[source]
        # Last: an interrupt leaves the written rows without valid slots.
        self.valid = [valid[row] for row in source]
