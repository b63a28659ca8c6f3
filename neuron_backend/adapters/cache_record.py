"""Record of the tokens at each position of a wrapped system's cache."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

UNKNOWN = -1


class CacheRecord:
    """
    The tokens fed to each position of each row, and how many of them the cache still holds.

    A wrapped system writes more positions than needed: every row of a call, a whole bucket after a
    prompt. The extra writes repeat the tokens recorded there or hit unused positions. Where neither is
    possible, the row is no longer intact from there on, and its tokens are fed again before they are used.
    """

    def __init__(self, batch_size: int, max_length: int) -> None:
        self.ids: Ints = np.full((batch_size, max_length), UNKNOWN, dtype=np.int64)
        """``[batch, positions]``; -1 where no valid token was fed."""

        self.intact: Ints = np.zeros(batch_size, dtype=np.int64)
        """Number of leading positions of each row that the cache holds as recorded, ``[batch]``."""

    def enter(self, ids: Ints, start: Ints) -> tuple[Ints, Ints, Ints]:
        """
        Record tokens that are about to be fed.

        A token that differs from the recorded one invalidates all recorded tokens after it.

        Args:
            ids: ``[batch, width]``; -1 is padding.

            start: Position of the first column, ``[batch]``.

        Returns:
            Three positions of each row, ``[batch]`` each: the first token that the cache no longer
            holds, the first new token, and the end of the new tokens. Tokens from the first position
            on have to be fed; all three are 0 in an idle row.
        """
        lost, begin, end = np.zeros_like(start), np.zeros_like(start), np.zeros_like(start)
        for row in np.flatnonzero((ids >= 0).any(axis=1)).tolist():
            columns = np.flatnonzero(ids[row] >= 0)
            positions, new = start[row] + columns, ids[row, columns]
            differs = self.ids[row, positions] != new
            if differs.any():
                first = int(positions[differs.argmax()])
                self.ids[row, first:] = UNKNOWN
                self.intact[row] = min(int(self.intact[row]), first)
            self.ids[row, positions] = new
            begin[row], end[row] = positions[0], positions[-1] + 1
            lost[row] = self._first_lost(row, int(positions[0]))
            # Positions before it that hold no token cannot be lost.
            self.intact[row] = max(int(self.intact[row]), int(lost[row]))
        return lost, begin, end

    def _first_lost(self, row: int, before: int) -> int:
        """The first position of *row* whose token the cache no longer holds, or *before*."""
        intact = int(self.intact[row])
        lost = np.flatnonzero(self.ids[row, intact:before] >= 0)
        return intact + int(lost[0]) if len(lost) else before

    def window(self, row: int, start: int, columns: int) -> Ints:
        """Tokens to feed *row* from *start* on; token 0 at positions without one."""
        return np.maximum(self.ids[row, start : start + columns], 0)

    def prefix(self, row: int, most: int) -> Ints:
        """The leading tokens of *row*, up to *most*; one token 0 if there are none."""
        return np.maximum(self.ids[row, : min(max(self._known(row, 0), 1), most)], 0)

    def fed(self, row: int, start: int, columns: int) -> None:
        """Note that *row* was fed its :meth:`window` of *columns* from *start* on."""
        if start <= self.intact[row]:
            held = start + min(self._known(row, start), columns)
            self.intact[row] = max(int(self.intact[row]), held)

    def _known(self, row: int, start: int) -> int:
        """Number of consecutive recorded tokens in *row* from *start* on."""
        unknown = self.ids[row, start:] == UNKNOWN
        return int(unknown.argmax()) if unknown.any() else len(unknown)
