"""What speculation gains on real prompts: cells, tables and goals."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from ..measuring.report import Threshold
from ..measuring.tables import Table

WORTHWHILE = 1.1
"""A best fixed length that gains less is no measure for the adaptive one."""

SLOWEST, SLOWEST_BY_CLOCK, MEAN_BY_CLOCK = 0.97, 0.93, 0.99
"""Goals: times as fast as plain decoding, of any prompt computed, any prompt measured, and in the mean."""

SHARES = {64: 0.8, 256: 0.9}
"""Goals by new tokens: share of the best fixed length's gain."""


@attrs.frozen
class Computed:
    """What draft lengths would have gained on one answer."""

    kind: str
    drafter: str
    temperature: float
    limit: int
    """Of new tokens, one of :data:`SHARES`."""

    tokens: int
    fixed: tuple[float, ...]
    """Times as fast as plain decoding, by fixed lengths from 1."""

    adaptive: float
    """The same, of the adaptive length."""

    known: float
    """The same, of a length that knows the answer's acceptance rates beforehand."""

    @property
    def is_worthwhile(self) -> bool:
        """Whether the best fixed length gains enough to be compared with."""
        return max(self.fixed) >= WORTHWHILE

    def share(self, speed: float) -> float:
        """The share of the best fixed length's gain, which has to be worthwhile, that *speed* has."""
        return (speed - 1) / (max(self.fixed) - 1)


@attrs.frozen
class Measured:
    """Plain decoding next to speculation by the clock, on one prompt."""

    kind: str
    drafter: str
    temperature: float
    ratios: tuple[float, ...]
    """Times as fast, by round."""


def computed_table(computed: Sequence[Computed]) -> Table:
    """Means by kind of prompt, drafter and tokens."""
    rows = []
    for kind, drafter, limit in _distinct((each.kind, each.drafter, each.limit) for each in computed):
        cells = [each for each in computed if (each.kind, each.drafter, each.limit) == (kind, drafter, limit)]
        rows.append(
            (
                kind,
                drafter,
                limit,
                _mean(each.adaptive for each in cells),
                _mean(each.known for each in cells),
                _mean(max(1.0, *each.fixed) for each in cells),
                min(each.adaptive for each in cells),
            )
        )
    columns = (
        "prompts",
        "drafter",
        "tokens",
        "adaptive",
        "rates known",
        "best fixed length",
        "slowest prompt",
    )
    return Table("Times as fast as plain decoding, computed, geometric means", columns, rows)


def shares_table(computed: Sequence[Computed]) -> Table:
    """Percent of the answers in which the share of the best fixed length's gain is kept."""
    rows = []
    for limit, goal, cells in _worthwhile(computed):
        adaptive = _percent(each.share(each.adaptive) >= goal for each in cells)
        known = _percent(each.share(each.known) >= goal for each in cells)
        rows.append((limit, f"{goal:.0%}", len(cells), adaptive, known))
    columns = ("tokens", "share", "answers", "adaptive, %", "rates known, %")
    return Table("Answers that keep a share of the best fixed length's gain, computed", columns, rows)


def measured_table(measured: Sequence[Measured], tokens: int) -> Table:
    """Medians by drafter and temperature; *tokens* is for the title."""
    rows = []
    for drafter, temperature in _distinct((each.drafter, each.temperature) for each in measured):
        cells = [each for each in measured if (each.drafter, each.temperature) == (drafter, temperature)]
        medians = [statistics.median(each.ratios) for each in cells]
        rows.append((drafter, temperature, _mean(medians), min(medians), max(medians)))
    columns = ("drafter", "temperature", "mean", "slowest prompt", "fastest prompt")
    return Table(f"Times as fast as plain decoding by the clock, {tokens} tokens, medians", columns, rows)


def computed_goals(computed: Sequence[Computed]) -> list[Threshold]:
    """Of the slowest prompt, and of the share of the best fixed gain."""
    goals = [
        Threshold("slowest prompt, computed", min(each.adaptive for each in computed), ">=", SLOWEST, "×")
    ]
    for limit, goal, cells in _worthwhile(computed):
        kept = _percent(each.share(each.adaptive) >= goal for each in cells)
        what = f"answers of {limit} tokens that keep {goal:.0%} of the best fixed length's gain"
        goals.append(Threshold(what, kept, ">=", 100, " %"))
    return goals


def measured_goals(measured: Sequence[Measured]) -> list[Threshold]:
    """Of the mean and of the slowest prompt of each drafter and temperature."""
    goals = []
    for drafter, temperature in _distinct((each.drafter, each.temperature) for each in measured):
        medians = [
            statistics.median(each.ratios)
            for each in measured
            if (each.drafter, each.temperature) == (drafter, temperature)
        ]
        named = f"{drafter}, temperature {temperature}, by the clock"
        goals.append(Threshold(f"{named}, mean", _mean(medians), ">=", MEAN_BY_CLOCK, "×"))
        goals.append(Threshold(f"{named}, slowest prompt", min(medians), ">=", SLOWEST_BY_CLOCK, "×"))
    return goals


def _worthwhile(computed: Sequence[Computed]) -> Iterator[tuple[int, float, list[Computed]]]:
    """Each limit of :data:`SHARES` with its share and the answers that the share is a goal for, if any."""
    for limit, goal in SHARES.items():
        cells = [each for each in computed if each.limit == limit and each.is_worthwhile]
        if cells:
            yield limit, goal, cells


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each once, in the order of appearance."""
    return list(dict.fromkeys(values))


def _percent(kept: Iterable[bool]) -> float:
    """Percent of them that are true."""
    return 100 * statistics.fmean(kept)


def _mean(ratios: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))
