"""Several locks as one."""

import itertools
import threading

import pytest

from decodekit.decoding.cache.lost_lock import LostLock
from decodekit.decoding.strategies.joined_lock import JoinedLock


def test_threads_that_name_the_locks_in_any_order_do_not_deadlock() -> None:
    """Every order, nested and in two levels; each is alone inside."""
    locks = [threading.RLock() for _ in range(3)]
    inside: list[int] = []

    def enter(order: tuple[int, ...]) -> None:
        first, *others = (locks[number] for number in order)
        for _ in range(200):
            lock = JoinedLock([first, JoinedLock(others)])
            with lock, lock, JoinedLock(others):
                inside.append(1)
                assert 1 == len(inside)
                inside.pop()

    threads = [
        threading.Thread(target=enter, args=(order,), daemon=True)
        for order in itertools.permutations(range(3))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert not any(thread.is_alive() for thread in threads)
    assert [] == inside


def test_all_are_free_after_an_exception() -> None:
    """Also if it comes from one of the locks."""
    lock = threading.Lock()
    with pytest.raises(KeyError), JoinedLock([lock]):
        raise KeyError

    assert not lock.locked()
    with pytest.raises(RuntimeError, match="must have a decoder of its own"), JoinedLock([lock, LostLock()]):
        pass

    assert not lock.locked()


def test_a_lock_that_is_named_twice_is_acquired_once() -> None:
    """A plain one would wait for itself."""
    lock = threading.Lock()
    with JoinedLock([lock, JoinedLock([lock])]):
        assert lock.locked()
