"""Records of running texts, found by their tokens."""

import threading
from typing import Any, Generic, Protocol, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from ...decoding.fork_safe_lock import fork_safe_lock

Ints = NDArray[np.int64]

_MOST_IDLE, _MOST_TOKENS = 64, 2**17
"""Limits on records kept between calls and on their tokens, unless the rows of one table exceed them."""


class TextRecord(Protocol):
    """Data about a running text."""

    @property
    def tokens(self) -> Ints:
        """Tokens of the text that the record covers; a record without any matches no text."""
        ...


R = TypeVar("R", bound=TextRecord)


@attrs.define(eq=False)
class RunningTexts(Generic[R]):
    """
    Pool of records, each to be taken by the row that continues its text.

    A text is identified by its tokens, not by its row: rows may come in any order, and several
    generators and threads may take turns. Only a cache, so pickles do not contain it.
    """

    _idle: list[R] = attrs.field(factory=list)
    """Most recent last."""

    _lock: threading.Lock = attrs.field(factory=fork_safe_lock)

    def __reduce__(self) -> tuple[Any, ...]:
        return RunningTexts, ()

    def take(self, ids: Ints) -> R | None:
        """Remove and return the record of the longest text that *ids* continue; None if there is none."""
        with self._lock:
            longest, at = 0, -1
            for place in range(len(self._idle) - 1, -1, -1):
                tokens = self._idle[place].tokens
                if len(tokens) > longest and _continues(ids, tokens):
                    longest, at = len(tokens), place
                    if longest >= len(ids) - 1:
                        # A step ago the text was this long: older records hold no more worth looking for.
                        break
            return self._idle.pop(at) if longest else None

    def put(self, records: list[R], rows: int) -> None:
        """
        Return *records* to the pool; the oldest are dropped beyond the limits.

        Args:
            records: Those of some of the rows, in their order.

            rows: Number of rows of the table; so many records are kept whatever the limits, since a call
                for some of them is followed by one for all.
        """
        with self._lock:
            # The first row's is found first in the next call.
            self._idle += reversed(records)
            tokens = sum(len(record.tokens) for record in self._idle)
            while len(self._idle) > rows and (len(self._idle) > _MOST_IDLE or tokens > _MOST_TOKENS):
                tokens -= len(self._idle.pop(0).tokens)


def _continues(ids: Ints, tokens: Ints) -> bool:
    n = len(tokens)
    # Compare the last token first, as texts often share a beginning.
    return 0 < n <= len(ids) and bool(ids[n - 1] == tokens[-1]) and np.array_equal(ids[:n], tokens)
