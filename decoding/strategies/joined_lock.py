"""The locks of several decoders as one."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any


class JoinedLock(AbstractContextManager[None]):
    """
    Holds all of *locks*, which are acquired in one order everywhere, so that threads cannot deadlock.

    It may be entered again by the thread that holds it, if the locks may.

    >>> import threading
    >>> one, other = threading.RLock(), threading.RLock()
    >>> with JoinedLock([one, other]), JoinedLock([JoinedLock([other]), one]):
    ...     print("held")
    held
    """

    def __init__(self, locks: Iterable[AbstractContextManager[Any]]) -> None:
        single: dict[int, AbstractContextManager[Any]] = {}
        for lock in locks:
            for one in lock.locks if isinstance(lock, JoinedLock) else [lock]:
                single[id(one)] = one
        self.locks: list[AbstractContextManager[Any]] = [single[number] for number in sorted(single)]
        # Used by the thread that holds the locks.
        self._held: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        """Acquire all."""
        held = _nested(self.locks)
        held.__enter__()
        self._held.append(held)

    def __exit__(self, *error: Any) -> None:
        """Release all."""
        self._held.pop().__exit__(*error)


@contextmanager
def _nested(locks: Sequence[AbstractContextManager[Any]]) -> Iterator[None]:
    # Closed when it is collected: an interrupt leaves no lock held.
    if locks:
        with locks[0], _nested(locks[1:]):
            yield
    else:
        yield
