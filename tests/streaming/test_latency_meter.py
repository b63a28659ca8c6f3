"""Latencies by a scripted clock."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from decodekit.decoding.results.events import Event
from decodekit.streaming import Latency, LatencyMeter

from .scripted_events import FINISH


class Clock:
    """A settable clock."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def measured(times: list[tuple[float, int, int]], rows: int = 1, start: float = 100.0) -> LatencyMeter:
    """A meter that was told of (seconds after the beginning, row, tokens)."""
    clock = Clock()
    clock.now = start
    meter = LatencyMeter(clock)
    meter.begin([[1]] * rows)
    for seconds, row, tokens in times:
        clock.now = start + seconds
        meter.put_event(Event(row, tuple(range(tokens))))
    meter.end()
    return meter


class TestLatencyMeter:
    """To the first token and between them."""

    def test_token_by_token(self) -> None:
        """Gaps of 1, 2 and 3 seconds: their mean, median and linear percentiles."""
        meter = measured([(4, 0, 1), (5, 0, 1), (7, 0, 1), (10, 0, 1)])

        assert 4.0 == meter.rows[0].first_token_seconds == meter.first_token.p50
        assert Latency(3, 2.0, 2.0, 2.9, 2.98) == meter.between_tokens == meter.between_events
        assert 4 / 10 == meter.tokens_per_second == meter.rows[0].tokens_per_second

    @pytest.mark.parametrize("per_event", range(1, 9))
    def test_tokens_of_one_event_share_its_wait(self, per_event: int) -> None:
        """8 tokens in 8 seconds are one a second, however they come; the pauses are longer."""
        sizes = [per_event] * (8 // per_event) + [8 % per_event] * (8 % per_event > 0)
        times, now = [(3.0, 0, 1)], 3.0
        for size in sizes:
            now += size
            times.append((now, 0, size))
        meter = measured(times)

        assert Latency(8, 1.0, 1.0, 1.0, 1.0) == meter.between_tokens
        assert (len(sizes), max(sizes)) == (meter.between_events.count, max(s for s, _ in meter.rows[0].gaps))
        assert np.mean(sizes) == meter.between_events.mean
        assert 9 / 11 == meter.tokens_per_second

    def test_rows_wait_for_themselves(self) -> None:
        """Waits are per row; the totals cover all rows' waits."""
        meter = measured([(1, 0, 1), (2, 1, 3), (3, 0, 2), (9, 1, 1)], rows=3)

        assert [1.0, 2.0, None] == [row.first_token_seconds for row in meter.rows]
        assert [[(2.0, 2)], [(7.0, 1)], []] == [row.gaps for row in meter.rows]
        assert 3 == meter.between_tokens.count
        assert 3.0 == meter.between_tokens.mean
        assert 4.5 == meter.between_events.mean
        assert (7, 7 / 9) == (meter.tokens, meter.tokens_per_second)
        assert 2 == meter.first_token.count

    def test_a_row_without_tokens_counts_for_nothing(self) -> None:
        """Nor does an event without them, such as the last of a text that was held back."""
        clock = Clock()
        meter = LatencyMeter(clock)
        meter.begin([[1], [1]])
        clock.now = 5.0
        meter.put_event(Event(0, (), "", FINISH))
        meter.end()

        assert (0, 0.0) == (meter.tokens, meter.seconds)
        assert math.isnan(meter.tokens_per_second)
        assert 0 == meter.first_token.count == meter.between_tokens.count == meter.between_events.count
        assert math.isnan(meter.between_tokens.p99)
        assert 2 * ["-"] == str(meter).splitlines()[1].split()[-2:]

    @given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 2), st.integers(0, 8)), max_size=12))
    def test_sums(self, steps: list[tuple[float, int, int]]) -> None:
        """Tokens, and the mean between them, add up from the times of each row's first and last."""
        times, now = [], 0.0
        for wait, row, tokens in steps:
            now += wait
            times.append((now, row, tokens))
        meter = measured(times, rows=3, start=0.0)
        for row in range(3):
            own = [(seconds, n) for seconds, number, n in times if number == row and n]
            between = meter.rows[row].between_tokens

            assert sum(n for _, n in own) == meter.rows[row].tokens
            assert sum(n for _, n in own[1:]) == between.count
            if between.count:
                assert math.isclose(own[-1][0] - own[0][0], between.mean * between.count, abs_tol=1e-9)

    def test_meters_add_up_as_one_that_goes_on(self) -> None:
        """Rows stand behind one another, seconds add."""
        first, second = [(1.0, 0, 1), (2.0, 0, 2)], [(2.0, 1, 1), (4.0, 0, 1)]
        clock = Clock()
        meter = LatencyMeter(clock)
        for times, rows in ((first, 1), (second, 2)):
            start = clock.now = clock.now + 50
            meter.begin([[1]] * rows)
            for seconds, row, tokens in times:
                clock.now = start + seconds
                meter.put_event(Event(row, (1,) * tokens))
            meter.end()
        both = measured(first) + measured(second, rows=2)

        assert str(both) == str(meter)
        assert [3, 1, 1] == [row.tokens for row in both.rows]
        assert 6.0 == both.seconds == meter.seconds

    def test_a_table(self) -> None:
        """Milliseconds, a line a row and one for all."""
        meter = measured([(0.25, 0, 1), (0.5, 1, 1), (0.75, 0, 2)], rows=2)

        assert [
            "row  tokens  first token  mean between  p50       p95       p99       tokens/s",
            "0    3       250.0 ms     250.0 ms      250.0 ms  250.0 ms  250.0 ms  4.0",
            "1    1       500.0 ms     -             -         -         -         2.0",
            "all  4       375.0 ms     250.0 ms      250.0 ms  250.0 ms  250.0 ms  5.3",
        ] == str(meter).splitlines()

    def test_without_a_beginning_there_is_no_time_to_the_first(self) -> None:
        """So events before one, or behind the end, are refused."""
        meter = LatencyMeter()
        with pytest.raises(RuntimeError, match=r"call begin\(prompts\) first"):
            meter.put_event(Event(0, (1,)))
        meter.begin([[1]])
        meter.end()
        with pytest.raises(RuntimeError, match=r"call begin\(prompts\) first"):
            meter.put_event(Event(0, (1,)))
