"""The speed-up that speculation can reach by the costs of forwards: Leviathan et al., theorem 3.8."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from ...decoding import SpeculationStep
from ..measuring.tables import Table
from .pair import DRAFT_WIDTHS, SecondsByWidth
from .runs import Run, median_decode_seconds, median_seconds


@attrs.frozen
class Costs:
    """Costs of forwards inside the runs, relative to a forward of the target of width 1."""

    narrow_seconds: float
    """Seconds of a forward of the target of width 1 in plain decoding."""

    c: float
    v: dict[int, float]

    @classmethod
    def of(cls, runs: list[list[Run]], plain: list[list[Run]], widths: Sequence[int]) -> "Costs":
        """Medians over *runs* of a system, and over those of *plain* decoding."""
        narrow = statistics.median(_merged(run.target for of_batch in plain for run in of_batch)[1])
        target = _merged(run.target for of_batch in runs for run in of_batch)
        draft = _merged(run.draft for of_batch in runs for run in of_batch)
        narrow_draft = [s for width, seconds in draft.items() if width in DRAFT_WIDTHS for s in seconds]
        v = {w: statistics.median(target[w]) / narrow for w in sorted(target) if w in widths}
        return cls(narrow, statistics.median(narrow_draft) / narrow if narrow_draft else 0.0, {1: 1.0} | v)

    def of_step(self, draft_tokens: int) -> float:
        """The cost of a step with *draft_tokens*."""
        width = next(width for width in self.v if width > draft_tokens)
        return draft_tokens * self.c + self.v[width]


def _merged(seconds: Iterable[SecondsByWidth]) -> SecondsByWidth:
    merged: SecondsByWidth = {}
    for each in seconds:
        for width, spent in each.items():
            merged.setdefault(width, []).extend(spent)
    return merged


def tokens_of_step(outcome: SpeculationStep) -> int:
    """Tokens that a step gave: every row's accepted draft tokens and the token after them."""
    return sum(outcome.accepted) + len(outcome.accepted)


def by_formula(steps: list[SpeculationStep], costs: Costs, kept: float) -> float:
    """
    The speed-up of *steps* if only forwards took time.

    Args:
        steps: All speculation steps.

        costs: Costs of forwards.

        kept: The share of the tokens that were not cut off by the stop condition.
    """
    gained = kept * sum(tokens_of_step(one) / len(one.accepted) for one in steps)
    return gained / sum(costs.of_step(max(one.drafted, default=0)) for one in steps)


def conditional_acceptance(steps: list[SpeculationStep]) -> list[float]:
    """For each position in a draft the share of accepted tokens where those before were accepted."""
    shares = []
    for position in range(max((max(one.drafted, default=0) for one in steps), default=0)):
        verified = [
            accepted > position
            for one in steps
            for drafted, accepted in zip(one.drafted, one.accepted, strict=True)
            if drafted > position and accepted >= position
        ]
        shares.append(sum(verified) / max(1, len(verified)))
    return shares


def _speculation_figures(steps: list[SpeculationStep], costs: Costs, kept: float) -> dict[str, Any]:
    rows = sum(len(one.accepted) for one in steps)
    return {
        "costs": attrs.asdict(costs),
        "formula": by_formula(steps, costs, kept),
        "tau": sum(map(tokens_of_step, steps)) / rows,
        "mean_length": statistics.fmean(max(one.drafted, default=0) for one in steps),
        "conditional_acceptance": conditional_acceptance(steps),
        "draft_ms": 1e3 * statistics.fmean(one.draft_seconds for one in steps),
        "target_ms": 1e3 * statistics.fmean(one.target_seconds for one in steps),
        "other_ms": 1e3 * statistics.fmean(one.other_seconds for one in steps),
    }


def figures(runs: dict[str, list[list[Run]]], widths: Sequence[int]) -> list[dict[str, Any]]:
    """The figures of every system; *widths* are the scored ones."""
    plain = runs["plain"]
    lines = []
    for name, own in runs.items():
        tokens = sum(of_batch[0].tokens for of_batch in own)
        line: dict[str, Any] = {
            "name": name,
            "tokens_per_second": tokens / median_seconds(own),
            "times_plain": median_seconds(plain) / median_seconds(own),
        }
        steps = [one for of_batch in own for run in of_batch for one in run.steps]
        if steps:
            costs = Costs.of(own, plain, widths)
            # The first token of a row comes from its prompt.
            decoded = sum(run.tokens - len(run.ids) for of_batch in own for run in of_batch)
            line |= _speculation_figures(steps, costs, decoded / sum(map(tokens_of_step, steps)))
            line["decode_speed_up"] = median_decode_seconds(plain) / median_decode_seconds(own)
            line["of_formula"] = line["decode_speed_up"] / line["formula"]
        lines.append(line)
    return lines


def table(title: str, lines: Sequence[dict[str, Any]]) -> Table:
    """The figures as a table; cells that do not apply to a system are empty."""
    columns = {
        "": "name",
        "tokens/s": "tokens_per_second",
        "× plain": "times_plain",
        "× decoding": "decode_speed_up",
        "× by the formula": "formula",
        "of it": "of_formula",
        "τ": "tau",
        "k": "mean_length",
        "draft ms": "draft_ms",
        "target ms": "target_ms",
        "other ms": "other_ms",
    }
    rows = [[*(line.get(key) for key in columns.values()), _costs(line)] for line in lines]
    return Table(title, (*columns, "c; v by width"), rows)


def _costs(line: dict[str, Any]) -> str | None:
    if "costs" not in line:
        return None
    costs = line["costs"]
    return f"{costs['c']:.3f}; " + ", ".join(f"({w}) {v:.2f}" for w, v in costs["v"].items() if w > 1)
