"""Throughput of past steps, and the price of time."""

import pytest

from decodekit.speculation.drafters.mixture_pace import Pace


class TestPrice:
    def test_nothing_is_known_at_first(self) -> None:
        """Then time is free, and everything is tried."""
        assert Pace(None).price() == 0
        assert Pace(None).cost(0) == 0

    def test_tokens_over_time(self) -> None:
        """Long-run tokens per row over seconds per step, drafting included."""
        pace = Pace(None)
        for _ in range(1000):
            pace.gained(3)
            pace.rested(0.5)
            pace.spent(0.25)

        assert pace.price() == pytest.approx(3 / 0.75)

    def test_given_costs_are_in_forwards(self) -> None:
        """No timing: a step without drafting is the unit."""
        pace = Pace((0.0, 0.2))
        pace.rested(17.0)
        pace.drafted(1, 5.0, 2)
        assert pace.cost(1) == 0.2
        for _ in range(1000):
            pace.gained(2)
            pace.spent(0.6)

        assert pace.price() == pytest.approx(2 / 1.6)

    def test_costs_are_for_a_token_ahead(self) -> None:
        """Of each drafter by itself."""
        pace = Pace(None)
        pace.drafted(1, 0.8, 4)
        pace.drafted(0, 0.3, 1)

        assert pace.cost(1) == 0.2
        assert pace.cost(0) == 0.3

    def test_a_pause_moves_nothing(self) -> None:
        """One step of an hour among many of a second."""
        pace = Pace(None)
        for seconds in [1.0, 1.0, 3600.0, 1.0, 1.0]:
            pace.rested(seconds)
            pace.drafted(0, seconds, 1)

        assert pace.price() == 1
        assert pace.cost(0) == 1

    def test_old_steps_are_forgotten(self) -> None:
        """A change shows after one or two hundred steps."""
        pace = Pace(None)
        for tokens, seconds in [(5, 0.1)] * 500 + [(1, 1.0)] * 300:
            pace.gained(tokens)
            pace.rested(seconds)
            pace.drafted(0, seconds, 1)

        assert pace.price() == pytest.approx(1.0, rel=0.02)
        assert pace.cost(0) == 1
