"""Requests that arrive over time, and when each of their tokens came."""

import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import attrs


@attrs.frozen
class Arrival:
    """A request."""

    after: float
    """Seconds after the beginning."""

    ids: tuple[int, ...]
    """The prompt."""


@attrs.define
class Timeline:
    """When a request was sent, and when its tokens came, in seconds of one clock."""

    sent: float = 0.0
    tokens: list[float] = attrs.field(factory=list)


def arrivals(prompts: Sequence[Sequence[int]], rate: float | None, seed: int) -> list[Arrival]:
    """
    A request for each of *prompts*, in random order.

    Args:
        prompts: Ids.

        rate: Requests a second, of a Poisson process; None: all at once.

        seed: Of order and times.
    """
    dice = random.Random(seed)
    order = list(prompts)
    dice.shuffle(order)
    after = 0.0
    found = []
    for ids in order:
        found.append(Arrival(after, tuple(ids)))
        after += 0.0 if rate is None else dice.expovariate(rate)
    return found


def play(requests: Sequence[Arrival], send: Callable[[Arrival, Timeline], None]) -> list[Timeline]:
    """
    Send each of *requests* at its time, in a thread of its own, and return when all are answered.

    Args:
        requests: In the order of arrival.

        send: Sends one, notes in its timeline when tokens come, and returns after the last.
    """
    timelines = [Timeline() for _ in requests]
    errors: list[BaseException] = []

    def one(request: Arrival, timeline: Timeline) -> None:
        timeline.sent = time.perf_counter()
        try:
            send(request, timeline)
        except BaseException as error:
            errors.append(error)

    threads = []
    begin = time.perf_counter()
    for request, timeline in zip(requests, timelines, strict=True):
        time.sleep(max(0.0, begin + request.after - time.perf_counter()))
        threads.append(threading.Thread(target=one, args=(request, timeline)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return timelines


@attrs.frozen
class Served:
    """The figures of one run."""

    tokens_per_second: float
    first: tuple[float, float, float]
    """Milliseconds to the first token: 50th, 95th and 99th percentile of the requests."""

    gap: tuple[float, float, float]
    """Milliseconds between one answer of tokens and the next: likewise, of all gaps."""

    @classmethod
    def of(cls, timelines: Sequence[Timeline]) -> "Served":
        """The figures of requests that were all answered."""
        total = sum(len(each.tokens) for each in timelines)
        begin, end = min(each.sent for each in timelines), max(each.tokens[-1] for each in timelines)
        # Tokens that came together have one time.
        times = [sorted(set(each.tokens)) for each in timelines]
        gaps = [1e3 * (later - earlier) for each in times for earlier, later in pairwise(each)]
        first = [1e3 * (each.tokens[0] - each.sent) for each in timelines]
        return cls(total / (end - begin), _percentiles(first), _percentiles(gaps))


def _percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        (value,) = values or [0.0]
        return value, value, value
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[94], cuts[98]
