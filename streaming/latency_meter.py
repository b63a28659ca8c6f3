"""Latency of tokens: time to first token and between tokens."""

import math
import time
from collections.abc import Callable, Iterable

import attrs
import numpy as np

from ..decoding.results.events import Event


@attrs.frozen
class Latency:
    """Statistics of latencies in seconds; NaN without any."""

    count: int
    """Number of samples."""

    mean: float
    """Mean."""

    p50: float
    """Median."""

    p95: float
    """95th percentile."""

    p99: float
    """99th percentile."""

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Latency":
        """Statistics of *seconds*, with linearly interpolated percentiles."""
        samples = np.fromiter(seconds, dtype=np.float64)
        if not len(samples):
            return cls(0, *[math.nan] * 4)
        p50, p95, p99 = (float(q) for q in np.quantile(samples, [0.5, 0.95, 0.99]))
        return cls(len(samples), float(samples.mean()), p50, p95, p99)


@attrs.define(eq=False)
class RowLatency:
    """Latencies of one row."""

    tokens: int = 0
    """Number of new tokens."""

    first_token_seconds: float | None = None
    """Time from the start to the row's first token; None while there is none."""

    gaps: list[tuple[float, int]] = attrs.field(factory=list, repr=False)
    """Seconds since the row's previous event, and number of tokens, for each event but the first."""

    @property
    def seconds(self) -> float:
        """Time from the start to the row's last token."""
        return (self.first_token_seconds or 0.0) + sum(seconds for seconds, _ in self.gaps)

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second; NaN without any."""
        return self.tokens / self.seconds if self.seconds else math.nan

    @property
    def between_tokens(self) -> Latency:
        """Time per token: the wait for an event of *n* tokens counts *n* times as its *n*-th part."""
        return _between_tokens([self])

    @property
    def between_events(self) -> Latency:
        """Time between events, as a reader observes it."""
        return _between_events([self])


@attrs.define(eq=False)
class LatencyMeter:
    """
    Measure the time to the first token and between tokens.

    Speculation gives several tokens per event, so there are two measures. :attr:`between_tokens`
    divides the wait for an event among its tokens, so its mean is the time per token;
    :attr:`between_events` takes whole waits, so its percentiles are the pauses a reader observes.
    The tokens of a row's first event count as tokens, but not as waits. Events without tokens are
    ignored.

    The clock runs from the call, when the prompts are known, and includes time in which the
    consumer blocks the generation.

    A meter accumulates over generations, appending their rows; ``a + b`` does the same for two
    meters. ``print(meter)`` shows a table.

    >>> ticks = iter([0.0, 0.5, 0.6, 0.9])
    >>> meter = LatencyMeter(clock=lambda: next(ticks))
    >>> meter.begin([[1]])
    >>> for ids in [(2,), (3,), (4, 5, 6)]:
    ...     meter.put_event(Event(row=0, ids=ids))
    >>> meter.end()
    >>> print(meter)
    row  tokens  first token  mean between  p50       p95       p99       tokens/s
    0    5       500.0 ms     100.0 ms      100.0 ms  100.0 ms  100.0 ms  5.6
    all  5       500.0 ms     100.0 ms      100.0 ms  100.0 ms  100.0 ms  5.6

    Args:
        clock: Returns the time in seconds.
    """

    clock: Callable[[], float] = attrs.field(default=time.perf_counter, repr=False)
    rows: list[RowLatency] = attrs.field(init=False, factory=list)
    """One for each row of each generation, in order."""

    seconds: float = attrs.field(init=False, default=0.0)
    """Time from the start to the last token, summed over generations."""

    # Of the current generation: index of its first row, start times, and each row's last event time.
    _offset: int = attrs.field(init=False, repr=False, default=0)
    _began: float | None = attrs.field(init=False, repr=False, default=None)
    _before: float = attrs.field(init=False, repr=False, default=0.0)
    _last: dict[int, float] = attrs.field(init=False, repr=False, factory=dict)

    def begin(self, prompts: list[list[int]]) -> None:
        """Start the clock."""
        self._offset, self._before = len(self.rows), self.seconds
        self.rows += [RowLatency() for _ in prompts]
        self._last.clear()
        self._began = self.clock()

    def put_event(self, event: Event) -> None:
        """
        Record the time of an event's tokens.

        Raises:
            RuntimeError: The clock has not been started.
        """
        if self._began is None:
            raise RuntimeError("this LatencyMeter does not know when it began: call begin(prompts) first")
        if not event.ids:
            return
        now, row = self.clock(), self.rows[self._offset + event.row]
        row.tokens += len(event.ids)
        if event.row in self._last:
            row.gaps.append((now - self._last[event.row], len(event.ids)))
        else:
            row.first_token_seconds = now - self._began
        self._last[event.row] = now
        self.seconds = self._before + now - self._began

    def end(self) -> None:
        """Stop the clock."""
        self._began = None

    @property
    def tokens(self) -> int:
        """Number of new tokens of all rows."""
        return sum(row.tokens for row in self.rows)

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all rows per second; NaN without any."""
        return self.tokens / self.seconds if self.seconds else math.nan

    @property
    def first_token(self) -> Latency:
        """Time to the first token, over all rows."""
        return Latency.of(_first_tokens(self.rows))

    @property
    def between_tokens(self) -> Latency:
        """Time per token over all rows; see :attr:`RowLatency.between_tokens`."""
        return _between_tokens(self.rows)

    @property
    def between_events(self) -> Latency:
        """Time between events over all rows."""
        return _between_events(self.rows)

    def __add__(self, other: "LatencyMeter") -> "LatencyMeter":
        """The rows and times of both meters."""
        if not isinstance(other, LatencyMeter):
            return NotImplemented
        both = LatencyMeter(self.clock)
        both.rows, both.seconds = self.rows + other.rows, self.seconds + other.seconds
        return both

    def __str__(self) -> str:
        heads = ["row", "tokens", "first token", "mean between", "p50", "p95", "p99", "tokens/s"]
        lines = [heads]
        for number, row in enumerate(self.rows):
            first = math.nan if row.first_token_seconds is None else row.first_token_seconds
            lines.append(_line(str(number), row.tokens, first, row.between_tokens, row.tokens_per_second))
        first, between = self.first_token.mean, self.between_tokens
        lines.append(_line("all", self.tokens, first, between, self.tokens_per_second))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _first_tokens(rows: Iterable[RowLatency]) -> Iterable[float]:
    return (row.first_token_seconds for row in rows if row.first_token_seconds is not None)


def _between_tokens(rows: Iterable[RowLatency]) -> Latency:
    return Latency.of(seconds / tokens for row in rows for seconds, tokens in row.gaps for _ in range(tokens))


def _between_events(rows: Iterable[RowLatency]) -> Latency:
    return Latency.of(seconds for row in rows for seconds, _ in row.gaps)


def _line(name: str, tokens: int, first: float, between: Latency, rate: float) -> list[str]:
    waits = [first, between.mean, between.p50, between.p95, between.p99]
    return [name, str(tokens), *map(_milliseconds, waits), "-" if math.isnan(rate) else f"{rate:.1f}"]


def _milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{1000 * seconds:.1f} ms"
