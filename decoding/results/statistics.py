"""Statistics of a run: counters, ratios and seconds."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from ..feed_counts import FeedCounts
from ..validation import as_real
from .html import summary_table

_BAR = 24
"""Characters of the longest bar."""

_PHASES = ("waiting", "prefill", "draft", "target", "sample", "gap", "stop", "logprobs")
"""In the order of a step."""


@attrs.define(eq=False, repr=False)
class Statistics:
    """
    Counters and seconds of one run, or of several runs in sequence (``a + b``).

    Draft tokens count by their position in the draft, in a tree by their depth. Tokens and draft
    tokens after a stop are not counted, except among the :attr:`columns`.

    Of four drafts of two tokens, one has none accepted, one has one, and two have both:

    >>> statistics = Statistics()
    >>> for accepted in (0, 1, 2, 2):
    ...     statistics.record(tokens=accepted + 1, drafted=2, accepted=accepted)
    >>> statistics.acceptance, statistics.conditional_acceptance
    ([0.75, 0.5], [0.75, 0.6666666666666666])
    >>> statistics.accepted_lengths, statistics.draft_lengths
    ([1, 1, 2], [0, 0, 4])
    >>> statistics.mean_accepted_length
    2.25

    ``print(statistics)`` shows a report with a histogram, and :meth:`plot` a figure.
    """

    tokens: int = 0
    """New tokens, of all rows."""

    forwards: int = 0
    """Forwards of the target, prompts included."""

    tokens_fed: int = 0
    """Columns with a token in those forwards: prompts, new tokens, drafts, and what was fed again."""

    steps: int = 0
    """Verifications, summed over the rows: the target forwards of each row after its first token."""

    drafted: list[int] = attrs.field(factory=list)
    """Draft tokens by position in the draft."""

    accepted: list[int] = attrs.field(factory=list)
    """Accepted draft tokens by position in the draft."""

    seconds: dict[str, float] = attrs.field(factory=dict)
    """
    By phase: ``"waiting"`` (of a request, for a row), ``"prefill"``, ``"draft"``, ``"target"``, ``"sample"``,
    ``"stop"``, ``"gap"``, ``"logprobs"``.
    """

    first_token_seconds: float | None = None
    """From the call to the first token of any row."""

    total_seconds: float = 0.0
    """From the call to the end, without the consumer's time between events."""

    reached: list[int] = attrs.field(factory=list)
    """Draft tokens by position in the draft, if all before them were accepted."""

    row_steps: list[int] = attrs.field(factory=list)
    """Verifications of each row; the rows of an added run follow."""

    row_accepted: list[int] = attrs.field(factory=list)
    """Accepted draft tokens of each row."""

    first_tokens: int = 0
    """The tokens that directly followed a prompt: one per row."""

    reused: int = 0
    """Prompt tokens, of all rows, that the decoder's cache held already and that were not fed again."""

    columns: int = 0
    """Columns of the target's forwards after the first tokens, over all of the decoder's rows."""

    padding: int = 0
    """Columns without a token: idle rows, and forwards wider than their tokens."""

    smallest_gap: float | None = None
    """
    The smallest margin of a kept token over the next: see
    :attr:`~..generator.Generator.record_gap`. None if not measured.
    """

    bit_exact: bool | None = None
    """
    Whether the target's logits are proved to be the same bits at every width, batch and span
    (:class:`~..optional_protocols.BitExact`), so that drafts and other rows change no token by rounding.
    None before a run.
    """

    _first_row: int = attrs.field(default=0, init=False)
    """Of the rows of the run that goes on, after those of earlier ones."""

    @property
    def mean_accepted_length(self) -> float:
        """τ: accepted draft tokens + 1 per target forward of a row; 1 without a draft."""
        return 1.0 + sum(self.accepted) / self.steps if self.steps else 1.0

    def mean_accepted_length_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """
        A confidence interval for τ.

        The normal interval of a ratio over the rows, accepted draft tokens to verifications: valid
        from about ten rows on. Rows are independent texts, while acceptance within a text is
        correlated: on the bundled pair, treating verifications as independent gives less than half
        the width. With a single row they are treated so nevertheless.

        Args:
            confidence: Above 0 and below 1.

        Returns:
            The lower and the upper bound; 1 and infinity if there are fewer than two verifications.

        Raises:
            ValueError: *confidence* is out of range.
        """
        if not isinstance(as_real(confidence), float) or not 0 < confidence < 1:
            raise ValueError(f"'confidence' must be above 0 and below 1: got {confidence!r}")
        if self.steps < 2:
            return 1.0, math.inf
        tau = self.mean_accepted_length
        rows = [(n, a) for n, a in zip(self.row_steps, self.row_accepted, strict=True) if n]
        if len(rows) > 1:
            samples, squares = len(rows), sum((a + n - tau * n) ** 2 for n, a in rows)
        else:
            samples = self.steps
            squares = sum(n * (i + 1 - tau) ** 2 for i, n in enumerate(self.accepted_lengths))
        error = math.sqrt(squares * samples / (samples - 1)) / self.steps
        # Imported late: it would be a large part of decodekit's import time.
        from statistics import NormalDist

        margin = NormalDist().inv_cdf((1 + confidence) / 2) * error
        return tau - margin, tau + margin

    @property
    def accepted_lengths(self) -> list[int]:
        """Verifications by number of accepted draft tokens: 0, 1, 2, ..."""
        return _by_length(self.steps, self.accepted)

    @property
    def draft_lengths(self) -> list[int]:
        """Verifications by draft length: 0, 1, 2, ..."""
        return _by_length(self.steps, self.drafted)

    @property
    def acceptance(self) -> list[float]:
        """The acceptance rate by position in the draft."""
        return _shares(self.accepted, self.drafted)

    @property
    def conditional_acceptance(self) -> list[float]:
        """The acceptance rate given that all earlier tokens were accepted; NaN if there were none."""
        return _shares(self.accepted, self.reached)

    @property
    def wasted_columns(self) -> int:
        """
        Columns of the target's forwards after the first tokens that gave no token.

        Padding, rejected draft tokens, tokens after a stop, and tokens that had to be fed again.
        """
        return self.columns - (self.tokens - self.first_tokens)

    @property
    def host_seconds(self) -> float:
        """Time outside the phases: the loop's own work, and waiting for a shared decoder."""
        return self.total_seconds - sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all rows per second of the whole run."""
        return self.tokens / self.total_seconds if self.total_seconds else 0.0

    def __add__(self, other: "Statistics") -> "Statistics":
        """The statistics of both runs, *other* after this one; ``sum(runs, Statistics())`` adds several."""
        first = self.first_token_seconds
        return Statistics(
            tokens=self.tokens + other.tokens,
            forwards=self.forwards + other.forwards,
            tokens_fed=self.tokens_fed + other.tokens_fed,
            steps=self.steps + other.steps,
            drafted=_added(self.drafted, other.drafted),
            accepted=_added(self.accepted, other.accepted),
            seconds={
                phase: self.seconds.get(phase, 0.0) + other.seconds.get(phase, 0.0)
                for phase in {**self.seconds, **other.seconds}
            },
            first_token_seconds=other.first_token_seconds if first is None else first,
            total_seconds=self.total_seconds + other.total_seconds,
            reached=_added(self.reached, other.reached),
            row_steps=self.row_steps + other.row_steps,
            row_accepted=self.row_accepted + other.row_accepted,
            first_tokens=self.first_tokens + other.first_tokens,
            reused=self.reused + other.reused,
            columns=self.columns + other.columns,
            padding=self.padding + other.padding,
            smallest_gap=_smallest([self.smallest_gap, other.smallest_gap]),
            bit_exact=_both(self.bit_exact, other.bit_exact),
        )

    def append_run(self, bit_exact: bool) -> None:
        """Count a run after those so far: its rows follow theirs, and *bit_exact* is its decoder's."""
        self.bit_exact = _both(self.bit_exact, bit_exact)
        self._first_row = len(self.row_steps)

    def record(self, tokens: int, drafted: int, accepted: int, row: int = 0) -> None:
        """Count one verification of a run's row: *tokens* kept, draft tokens *drafted* and *accepted*."""
        row += self._first_row
        self.steps += 1
        self.tokens += tokens
        if row >= len(self.row_steps):
            new = [0] * (row + 1 - len(self.row_steps))
            self.row_steps += new
            self.row_accepted += new
        self.row_steps[row] += 1
        self.row_accepted[row] += accepted
        if not drafted:
            return
        missing = [0] * (drafted - len(self.drafted))
        self.drafted += missing
        self.accepted += missing
        self.reached += missing
        for i in range(drafted):
            self.drafted[i] += 1
            self.accepted[i] += i < accepted
            self.reached[i] += i <= accepted

    def record_first(self, tokens: int) -> None:
        """Count a row's first token, which is no verification; 0 *tokens* if none was possible."""
        self.tokens += tokens
        self.first_tokens += tokens

    def record_feed(self, spent: FeedCounts, begun: bool) -> None:
        """Count the forwards of a step; columns once the decoding has *begun*, after prefill."""
        self.forwards += spent.forwards
        self.tokens_fed += spent.tokens
        if begun:
            self.columns += spent.columns
            self.padding += spent.columns - spent.tokens

    def record_gaps(self, gaps: Iterable[float]) -> None:
        """Record the gaps of one step."""
        self.smallest_gap = _smallest([self.smallest_gap, *gaps])

    def __repr__(self) -> str:
        """
        One line: tokens, seconds, forwards, and τ if anything was drafted.

        >>> Statistics(tokens=8, forwards=9, total_seconds=0.5)
        <Statistics: 8 tokens in 0.500 s (16.0 tokens/s), 9 forwards>
        """
        tau = f", τ = {self.mean_accepted_length:.2f}" if self.drafted else ""
        return (
            f"<Statistics: {self.tokens} tokens in {self.total_seconds:.3f} s "
            f"({self.tokens_per_second:.1f} tokens/s), {self.forwards} forwards{tau}>"
        )

    def _repr_html_(self) -> str:
        """The counters and the phases' seconds."""
        fields: dict[str, object] = {
            "tokens": self.tokens,
            "forwards": self.forwards,
            "tokens/s": f"{self.tokens_per_second:.1f}",
        }
        if self.reused:
            fields["reused prompt tokens"] = self.reused
        if self.drafted:
            fields["τ"] = f"{self.mean_accepted_length:.3f}"
        seconds = {f"seconds: {phase}": f"{spent:.3f}" for phase, spent in self._spent().items()}
        return summary_table("Statistics", {**fields, **seconds})

    def __str__(self) -> str:
        """A few lines, with a histogram of the accepted lengths if anything was drafted."""
        first = self.first_token_seconds
        lines = [
            f"{self.tokens} tokens in {self.total_seconds:.3f} s: {self.tokens_per_second:.1f} tokens/s"
            + ("" if first is None else f", the first after {1000 * first:.1f} ms"),
            f"{self.forwards} forwards of the target" + self._waste(),
        ]
        if self.reused:
            lines.append(f"{self.reused} prompt tokens reused from the cache")
        if self.drafted:
            low, high = self.mean_accepted_length_interval()
            margin = f" ± {(high - low) / 2:.3f} (95 %)" if high < math.inf else ""
            tau = self.mean_accepted_length
            without = self.draft_lengths[0]
            said = f", {without} of them without a draft" if without else ""
            lines.append(f"τ = {tau:.3f}{margin}; verifications: {self.steps}{said}")
            lines += self._histogram()
        elif "draft" in self.seconds and self.steps:
            lines.append("the drafter was asked, and nothing was drafted")
        if self.bit_exact or (self.bit_exact is False and self.drafted):
            known = "proved" if self.bit_exact else "not proved"
            lines.append(f"the same logits at every width, batch and span: {known}")
        if self.smallest_gap is not None:
            lines.append(f"smallest gap {self.smallest_gap:.2e}")
        spent = (f"{phase} {seconds:.3f}" for phase, seconds in self._spent().items())
        return "\n".join([*lines, "seconds: " + ", ".join(spent)])

    def plot(self) -> Any:
        """
        A ``matplotlib.figure.Figure`` of accepted lengths, acceptance by position, and seconds.

        Raises:
            ImportError: matplotlib is not installed; it is with ``pip install "decodekit[plot]"``.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError('a figure needs matplotlib: pip install "decodekit[plot]"') from error
        # Not through pyplot, which would keep the figure and select a GUI backend.
        figure = Figure(figsize=(12, 3.5), layout="constrained")
        lengths, rates, seconds = figure.subplots(1, 3)

        tau, times = self.mean_accepted_length, self.accepted_lengths
        lengths.bar(range(len(times)), times)
        lengths.set(title=f"τ = {tau:.3f}", xlabel="accepted draft tokens", ylabel="verifications")

        places = range(1, len(self.drafted) + 1)
        rates.plot(places, self.acceptance, marker="o", label="of all")
        rates.plot(places, self.conditional_acceptance, marker="s", label="if all before were accepted")
        rates.set(title="acceptance", xlabel="position in the draft", ylabel="rate", ylim=(0, 1.02))
        rates.xaxis.get_major_locator().set_params(integer=True)
        rates.legend()

        spent = self._spent()
        seconds.barh(list(spent), list(spent.values()))
        seconds.set(title=f"{self.tokens_per_second:.1f} tokens/s", xlabel="seconds")
        seconds.invert_yaxis()
        return figure

    def _waste(self) -> str:
        if not self.columns:
            return ""
        share = 100 * self.wasted_columns / self.columns
        return (
            f"; after the first tokens {self.columns} columns, "
            f"{self.wasted_columns} wasted ({share:.0f} %), {self.padding} of them padding"
        )

    def _histogram(self) -> list[str]:
        """A line for each accepted length, with the acceptance at that position."""
        times = self.accepted_lengths
        longest, digits = max(times), max(5, len(str(max(times))))
        lines = [f"accepted {'times':>{digits}} {'':{_BAR}}  acceptance  if all before"]
        for i, n in enumerate(times):
            line = f"{i:8} {n:{digits}} {'█' * round(_BAR * n / longest):{_BAR}}"
            if i:
                given, conditional = self.acceptance[i - 1], self.conditional_acceptance[i - 1]
                line += f"  {given:10.3f}  {conditional:13.3f}"
            lines.append(line.rstrip())
        return lines

    def _spent(self) -> dict[str, float]:
        spent = {phase: self.seconds[phase] for phase in _PHASES if phase in self.seconds}
        # Phases of other names come last.
        return {**spent, **self.seconds, "host": self.host_seconds}


def _by_length(verifications: int, reaching: Sequence[int]) -> list[int]:
    """Counts of the lengths 0, 1, 2, ..., given the counts of at least 1, 2, ..."""
    return [some - more for some, more in itertools.pairwise([verifications, *reaching, 0])]


def _shares(parts: Sequence[int], wholes: Sequence[int]) -> list[float]:
    return [part / whole if whole else math.nan for part, whole in zip(parts, wholes, strict=True)]


def _smallest(gaps: Iterable[float | None]) -> float | None:
    return min((gap for gap in gaps if gap is not None), default=None)


def _both(one: bool | None, other: bool | None) -> bool | None:
    """Whether both are True; None counts as whatever the other is."""
    return other if one is None else one if other is None else one and other


def _added(some: Sequence[int], others: Sequence[int]) -> list[int]:
    """Element by element; the shorter is padded with zeros."""
    return [a + b for a, b in itertools.zip_longest(some, others, fillvalue=0)]


def check_statistics(statistics: object) -> None:
    """
    Check what a run is to be counted in.

    Raises:
        TypeError: *statistics* are none.
    """
    if not isinstance(statistics, Statistics):
        raise TypeError(f"'statistics' must be Statistics(): got {statistics!r:.80}")
