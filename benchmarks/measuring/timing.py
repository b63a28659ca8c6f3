"""Timing of calls that take turns."""

import statistics
import time
from collections.abc import Callable, Sequence


def milliseconds_in_turns(
    calls: Sequence[Callable[[], object]], rounds: int, *, warm_up: int, in_a_row: int
) -> list[list[float]]:
    """
    Time *calls* side by side, so that other load on the machine affects all of them.

    Args:
        calls: Timed one after another in every round.

        rounds: Measurements of each call.

        warm_up: Untimed repetitions before each measurement; they fill the caches again.

        in_a_row: Timed repetitions of one measurement.

    Returns:
        For each call one number a round: the median of its timed repetitions.
    """
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, spent in zip(calls, times, strict=True):
            for _ in range(warm_up):
                call()
            repeated = []
            for _ in range(in_a_row):
                start = time.perf_counter()
                call()
                repeated.append(1e3 * (time.perf_counter() - start))
            spent.append(statistics.median(repeated))
    return times


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the rounds' ratios: a disturbance of one round affects both sides."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))
