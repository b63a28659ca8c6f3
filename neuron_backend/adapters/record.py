"""Which token stands at which position of a wrapped system's cache."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

UNKNOWN = -1


class Record:
    """
    The tokens that were fed, row by row and position by position, and how far the cache holds them.

    A wrapped system writes more than it was asked to: every row of a call, a bucket behind a
    prompt. What it writes beyond the tokens fed is either what stands there anyway, or it lands
    where nothing stands. Where neither can be had, the row is no longer intact from there on, and
    its tokens are fed again before anything looks at them.
    """

    def __init__(self, batch_size: int, max_length: int) -> None:
        self.ids: Ints = np.full((batch_size, max_length), UNKNOWN, dtype=np.int64)
        """``[batch, positions]``; -1 where nothing of worth has been fed."""

        self.intact: Ints = np.zeros(batch_size, dtype=np.int64)
        """How many leading positions of each row the cache holds as they were fed, ``[batch]``."""

    def enter(self, ids: Ints, start: Ints) -> tuple[Ints, Ints, Ints]:
        """
        Note what is to be fed, before it is.

        A token that differs from the one that stood there makes worthless what stood behind it.

        Args:
            ids: ``[batch, width]``; -1 is padding.

            start: Position of the first column, ``[batch]``.

        Returns:
            Three positions of each row, ``[batch]`` each: that of the first token that the cache no
            longer holds, that of the first new one, and where the new ones end. Tokens from the first
            on have to go through the system; all are 0 in a row that is idle.
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
            # Before that nothing has been fed, and nothing can be lost.
            self.intact[row] = max(int(self.intact[row]), int(lost[row]))
        return lost, begin, end

    def _first_lost(self, row: int, before: int) -> int:
        """The first position of *row* whose token the cache no longer holds, or *before*."""
        intact = int(self.intact[row])
        lost = np.flatnonzero(self.ids[row, intact:before] >= 0)
        return intact + int(lost[0]) if len(lost) else before

    def window(self, row: int, start: int, columns: int) -> Ints:
        """What to feed *row* from *start* on: its tokens, and any token where there are none."""
        return np.maximum(self.ids[row, start : start + columns], 0)

    def prefix(self, row: int, most: int) -> Ints:
        """The leading tokens of *row*, up to *most*; a token that means nothing if there are none."""
        return np.maximum(self.ids[row, : min(max(self._known(row, 0), 1), most)], 0)

    def fed(self, row: int, start: int, columns: int) -> None:
        """After *row* was fed its :meth:`window`, over positions that were intact before it."""
        if start <= self.intact[row]:
            held = start + min(self._known(row, start), columns)
            self.intact[row] = max(int(self.intact[row]), held)

    def _known(self, row: int, start: int) -> int:
        """How many tokens follow one another in *row* from *start* on."""
        unknown = self.ids[row, start:] == UNKNOWN
        return int(unknown.argmax()) if unknown.any() else len(unknown)
