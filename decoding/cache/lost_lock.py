"""The lock of a decoder that was in use when the process was forked."""

from typing import NoReturn


class LostLock:
    """
    A lock that cannot be acquired.

    A forked process has none of its parent's other threads. If one of them was generating, the cache is in an
    unknown state, and the lock would never be released.
    """

    def acquire(self, blocking: bool = True, timeout: float = -1) -> NoReturn:
        """Raise ``RuntimeError``."""
        raise RuntimeError(
            "this process must have a decoder of its own: got one with which another thread was generating "
            "when the process was forked. Start processes with multiprocessing's 'spawn', or compile or load "
            "the decoder in each of them"
        )

    def release(self) -> None:
        """Nothing to release."""

    def __enter__(self) -> NoReturn:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()
