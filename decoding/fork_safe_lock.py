"""Locks of caches, which a forked process can use whatever other threads of its parent were doing."""

import threading

from .after_fork import told_after_fork


def fork_safe_lock() -> threading.Lock:
    """
    A lock that is free in a forked process, even if another thread of the parent held it.

    That thread does not exist there and would never release it. For data that is usable wherever its
    holder was interrupted, such as a cache.
    """
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _free(lock: threading.Lock) -> None:
    if lock.locked():
        lock.release()


_locks = told_after_fork(_free)
