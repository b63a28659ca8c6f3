"""The order in which waiting requests are seated."""

import heapq
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from decodekit.decoding.serving.waiting_line import WaitingLine

REQUESTS = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 20)), max_size=12)


class Request(SimpleNamespace):
    """What the line reads of a request."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def line(wanted: list[tuple[int, int]], ageing: float = 1.0) -> tuple[WaitingLine, list[Any]]:
    """Requests with priorities and times of submission, which grow."""
    requests = [
        Request(priority=priority, submitted=submitted)
        for (priority, _), submitted in zip(wanted, sorted(time for _, time in wanted), strict=True)
    ]
    waiting = WaitingLine(ageing)
    waiting.add(requests)
    return waiting, requests


@given(REQUESTS, st.randoms(use_true_random=False))
def test_the_highest_priority_is_next(wanted: list[tuple[int, int]], dice: random.Random) -> None:
    """With a second of waiting worth 1, at any time; among equals by arrival. Some were taken out before."""
    waiting, left = line(wanted)
    for request in dice.sample(left, len(left) // 3):
        waiting.remove(request)
        left.remove(request)
    now = 30
    while waiting:
        assert list(waiting) == left
        found = waiting.next()
        assert found is max(left, key=lambda one: one.priority + now - one.submitted)
        left.remove(found)
        now += 1
    assert not left


def test_one_that_is_added_twice() -> None:
    """As after an interrupt: it is seated once."""
    waiting, requests = line([(0, 0), (0, 1)])
    waiting.add(requests)

    assert requests == [waiting.next(), waiting.next()]
    assert not waiting


def test_an_empty_line() -> None:
    """After clear, nothing is left of earlier requests."""
    waiting, _ = line([(0, 0), (1, 1)])
    waiting.clear()
    waiting.add(later := line([(0, 0)])[1])

    assert [len(waiting), waiting.next()] == [1, later[0]]


def test_many_that_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when all are cancelled: the order is not made anew for each."""
    calls = []
    monkeypatch.setattr(heapq, "heapify", calls.append)
    waiting, requests = line([(0, time) for time in range(1000)])
    for request in requests:
        waiting.remove(request)

    assert 0 < len(calls) < 20
    assert not waiting._ranks
