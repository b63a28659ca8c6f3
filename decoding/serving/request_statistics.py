"""Statistics of requests that share a decoder's forwards."""

import time
from collections.abc import Sequence

import attrs

from ..results.statistics import Statistics


@attrs.frozen(eq=False)
class TableCounts:
    """What a table of requests had counted at one time."""

    at: float
    """In seconds of ``time.monotonic``."""

    forwards: int
    seconds: dict[str, float]

    @classmethod
    def of(cls, table: Statistics) -> "TableCounts":
        """What the running statistics of a *table* say now."""
        return cls(time.monotonic(), table.forwards, dict(table.seconds))


@attrs.define(eq=False)
class SeatedTime:
    """The time in which a request has a row, from now on."""

    table: Statistics
    """The running statistics of the table."""

    begin: TableCounts = attrs.field(init=False)
    end: TableCounts | None = attrs.field(default=None, init=False)
    """None while the request has its row."""

    @begin.default
    def _now(self) -> TableCounts:
        return TableCounts.of(self.table)

    def leave(self) -> None:
        """End now."""
        self.end = TableCounts.of(self.table)


def with_shared_work(
    own: Sequence[Statistics],
    seated: Sequence[SeatedTime],
    submitted: float,
    running: bool,
    drafts: bool,
) -> Statistics:
    """
    The statistics of requests that were submitted together, with the table's work while they had rows.

    Args:
        own: What each has counted itself, since it was submitted.

        seated: The times in which they had rows.

        submitted: When, in seconds of ``time.monotonic``.

        running: Whether one of them has not ended.

        drafts: Whether they have a drafter.
    """
    counted = sum(own, Statistics())
    # Each has counted as a single row, if it came to a verification.
    counted.row_steps = [steps for each in own for steps in each.row_steps or [0]]
    counted.row_accepted = [accepted for each in own for accepted in each.row_accepted or [0]]
    while counted.row_steps and not counted.row_steps[-1]:
        del counted.row_steps[-1], counted.row_accepted[-1]
    # They ran side by side, and count their time at each event.
    ended = max(each.total_seconds for each in own)
    counted.total_seconds = time.monotonic() - submitted if running else ended
    firsts = [each.first_token_seconds for each in own if each.first_token_seconds is not None]
    counted.first_token_seconds = min(firsts, default=None)
    waiting, before = 0.0, submitted
    for begin, end in _periods(seated):
        waiting, before = waiting + begin.at - before, end.at
        counted.forwards += end.forwards - begin.forwards
        for phase, seconds in end.seconds.items():
            shared = seconds - begin.seconds.get(phase, 0.0)
            if shared and (drafts or phase != "draft"):
                counted.seconds[phase] = counted.seconds.get(phase, 0.0) + shared
    counted.seconds["waiting"] = waiting if seated else counted.total_seconds
    return counted


def _periods(seated: Sequence[SeatedTime]) -> list[tuple[TableCounts, TableCounts]]:
    """The periods in which any request had a row, in order and without overlap."""
    periods: list[tuple[TableCounts, TableCounts]] = []
    for each in sorted(seated, key=lambda one: one.begin.at):
        end = each.end or TableCounts.of(each.table)
        if periods and each.begin.at <= periods[-1][1].at:
            begin, earlier = periods.pop()
            periods.append((begin, max(earlier, end, key=lambda counts: counts.at)))
        else:
            periods.append((each.begin, end))
    return periods
