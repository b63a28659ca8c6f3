"""What is remembered of texts that are being written."""

import threading
from typing import Any, Generic, Protocol, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_MOST_IDLE, _MOST_TOKENS = 64, 2**17
"""Records kept between calls, and tokens that they know of, unless one call's rows have more."""


class Record(Protocol):
    """Something known of a text."""

    @property
    def taken(self) -> Ints:
        """The tokens of the text as far as the record knows it; without any it is nobody's."""
        ...


R = TypeVar("R", bound=Record)


@attrs.define(eq=False)
class RunningTexts(Generic[R]):
    """
    Records that nobody is using, each for whoever continues its text.

    A text is known by its tokens, not by its row: rows may come in any order, and several
    generators and threads may take turns. Nothing but a cache, so a pickle holds none of them.
    """

    _idle: list[R] = attrs.field(factory=list)
    """The latest last."""

    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def __reduce__(self) -> tuple[Any, ...]:
        return RunningTexts, ()

    def take(self, ids: Ints) -> R | None:
        """The record of the longest text that *ids* continue, now the caller's; None if there is none."""
        with self._lock:
            begun = [record for record in self._idle if _continues(ids, record.taken)]
            if not begun:
                return None
            longest = max(begun, key=lambda record: len(record.taken))
            # By identity: records may compare equal.
            del self._idle[next(i for i, record in enumerate(self._idle) if record is longest)]
            return longest

    def put(self, records: list[R]) -> None:
        """Keep *records* for the next call; the oldest go where there are too many."""
        with self._lock:
            self._idle += records
            tokens = sum(len(record.taken) for record in self._idle)
            while len(self._idle) > len(records) and (len(self._idle) > _MOST_IDLE or tokens > _MOST_TOKENS):
                tokens -= len(self._idle.pop(0).taken)


def _continues(ids: Ints, taken: Ints) -> bool:
    n = len(taken)
    # The last one first: texts mostly begin alike.
    return 0 < n <= len(ids) and bool(ids[n - 1] == taken[-1]) and np.array_equal(ids[:n], taken)
