"""What speculation has to give, by what forwards cost and what stood: Leviathan et al., theorem 3.8."""

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

import attrs
from speculation_runs import DRAFT_WIDTHS, Run, seconds_of

from decodekit.bench.report import Table
from decodekit.decoding import Round


@attrs.frozen
class Costs:
    """Of forwards as they ran, among everything else, in those of the target over one column."""

    narrow_seconds: float
    c: float
    v: dict[int, float]

    @classmethod
    def of(cls, runs: list[list[Run]], plain: list[list[Run]], widths: Sequence[int]) -> "Costs":
        """Measured in a contender's *runs* and in those of *plain* decoding: medians."""
        narrow = statistics.median(_seconds(plain, "target")[1])
        target, draft = _seconds(runs, "target"), _seconds(runs, "draft")
        steps = [s for width, seconds in draft.items() if width in DRAFT_WIDTHS for s in seconds]
        v = {w: statistics.median(target[w]) / narrow for w in sorted(target) if w in widths}
        return cls(narrow, statistics.median(steps) / narrow if steps else 0.0, {1: 1.0} | v)

    def of_round(self, guesses: int) -> float:
        """What a round with a draft of so many *guesses* has to cost."""
        width = next(width for width in self.v if width > guesses)
        return guesses * self.c + self.v[width]


def _seconds(runs: list[list[Run]], model: str) -> dict[int, list[float]]:
    """Of every forward of *model* in *runs*, by width."""
    seconds: dict[int, list[float]] = {}
    for run in itertools.chain.from_iterable(runs):
        for width, spent in getattr(run, model).items():
            seconds.setdefault(width, []).extend(spent)
    return seconds


def tokens_of_round(outcome: Round) -> int:
    """What a round gave: every row's accepted guesses and the token after them."""
    return sum(outcome.accepted) + len(outcome.accepted)


def by_formula(rounds: list[Round], costs: Costs, kept: float) -> float:
    """
    The speed-up that such rounds would have if nothing but forwards took time.

    Args:
        rounds: All of them.

        costs: Of forwards.

        kept: The share of the tokens that rounds gave which the stop did not cut off.
    """
    gained = kept * sum(tokens_of_round(one) / len(one.accepted) for one in rounds)
    return gained / sum(costs.of_round(max(one.drafted, default=0)) for one in rounds)


def standing(rounds: list[Round]) -> list[float]:
    """For each place in a draft the share of guesses that stood where those before them had."""
    shares = []
    for place in range(max((max(one.drafted, default=0) for one in rounds), default=0)):
        judged = [
            accepted > place
            for one in rounds
            for drafted, accepted in zip(one.drafted, one.accepted, strict=True)
            if drafted > place and accepted >= place
        ]
        shares.append(sum(judged) / max(1, len(judged)))
    return shares


def rounds_line(rounds: list[Round], costs: Costs, kept: float) -> dict[str, Any]:
    """What a contender's rounds say; arguments as of :func:`by_formula`."""
    spent = {
        f"{part}_ms": 1e3 * statistics.fmean(getattr(one, f"{part}_seconds") for one in rounds)
        for part in ("draft", "target", "other")
    }
    rows = sum(len(one.accepted) for one in rounds)
    return {
        "costs": attrs.asdict(costs),
        "formula": by_formula(rounds, costs, kept),
        "tau": sum(map(tokens_of_round, rounds)) / rows,
        "mean_length": statistics.fmean(max(one.drafted, default=0) for one in rounds),
        "standing": standing(rounds),
        **spent,
    }


def lines_of(runs: dict[str, list[list[Run]]], widths: Sequence[int]) -> list[dict[str, Any]]:
    """A line a contender, in numbers; every column of *widths* is scored."""
    plain = runs["plain"]
    lines = []
    for name, own in runs.items():
        tokens = sum(of_batch[0].tokens for of_batch in own)
        line: dict[str, Any] = {
            "name": name,
            "tokens_per_second": tokens / seconds_of(own, "seconds"),
            "times_plain": seconds_of(plain, "seconds") / seconds_of(own, "seconds"),
        }
        rounds = [one for of_batch in own for run in of_batch for one in run.rounds]
        if rounds:
            costs = Costs.of(own, plain, widths)
            # A row's first token comes from its prompt.
            decoded = sum(run.tokens - len(run.ids) for of_batch in own for run in of_batch)
            line |= rounds_line(rounds, costs, decoded / sum(map(tokens_of_round, rounds)))
            line["decode_speed_up"] = seconds_of(plain, "decode_seconds") / seconds_of(own, "decode_seconds")
            line["of_formula"] = line["decode_speed_up"] / line["formula"]
        lines.append(line)
    return lines


def table(title: str, lines: Sequence[dict[str, Any]]) -> Table:
    """The same for a reader; what is no contender's is left open."""
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
