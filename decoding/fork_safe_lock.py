"""Locks of caches, which a forked process can use whatever other threads of its parent were doing."""

import os
import threading
import weakref

_locks: "weakref.WeakSet[threading.Lock]" = weakref.WeakSet()


def fork_safe_lock() -> threading.Lock:
    """
    A lock that is free in a forked process, even if another thread of the parent held it.

    That thread does not exist there and would never release it. For data that is usable wherever its
    holder was interrupted, such as a cache.
    """
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _after_fork_in_child() -> None:
    for lock in _locks:
        if lock.locked():
            lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
