"""Statistics of requests that share a decoder's forwards."""

import time
from collections.abc import Sequence

import attrs

from ..results.statistics import Statistics


@attrs.frozen(eq=False)
class Mark:
    """What a table of requests had counted at one time."""

    at: float
    """In seconds of ``time.monotonic``."""

    forwards: int
    seconds: dict[str, float]

    @classmethod
    def of(cls, table: Statistics) -> "Mark":
        """What the running statistics of a *table* say now."""
        return cls(time.monotonic(), table.forwards, dict(table.seconds))


@attrs.define(eq=False)
class Sitting:
    """The time of a request in a table of requests, from its seating on."""

    table: Statistics
    """The running statistics of the table."""

    begin: Mark = attrs.field(init=False)
    end: Mark | None = attrs.field(default=None, init=False)
    """None while the request has its row."""

    def __attrs_post_init__(self) -> None:
        """Begin now."""
        self.begin = Mark.of(self.table)

    def leave(self) -> None:
        """End now."""
        self.end = Mark.of(self.table)


def with_shared_work(own: Sequence[Statistics], sittings: Sequence[Sitting], submitted: float) -> Statistics:
    """
    The statistics of requests that were submitted together, with the table's work while they had rows.

    Args:
        own: What each has counted itself, since it was submitted.

        sittings: Of those that had a row.

        submitted: When, in seconds of ``time.monotonic``.
    """
    counted = sum(own, Statistics())
    # They ran side by side.
    counted.total_seconds = max(each.total_seconds for each in own)
    firsts = [each.first_token_seconds for each in own if each.first_token_seconds is not None]
    counted.first_token_seconds = min(firsts, default=None)
    if not sittings:
        counted.seconds["waiting"] = counted.total_seconds
        return counted
    begin = min((sitting.begin for sitting in sittings), key=lambda mark: mark.at)
    ends = [sitting.end or Mark.of(sitting.table) for sitting in sittings]
    end = max(ends, key=lambda mark: mark.at)
    counted.forwards = end.forwards - begin.forwards
    counted.seconds["waiting"] = begin.at - submitted
    for phase, seconds in end.seconds.items():
        shared = seconds - begin.seconds.get(phase, 0.0)
        counted.seconds[phase] = counted.seconds.get(phase, 0.0) + shared
    return counted
