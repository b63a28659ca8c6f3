"""Min-k sampling."""

import pytest

from decodekit.processors import MinK, Temperature

from ..by_hand import run, stays

INF = float("inf")


class TestMinK:
    @pytest.mark.parametrize(
        ("logits", "expected"),
        [
            # 9 8 7 1 0: the steps are 1, 1/2, 6/3 and 1/4.
            pytest.param([1.0, 9.0, 0.0, 7.0, 8.0], [1, 3, 4], id="after-the-third"),
            # 2.5 and 6.5/2 = 3.25
            pytest.param([9.0, 6.5, 0.0], [0, 1], id="after-the-second"),
            # 3.5 and 5.5/2 = 2.75: a higher step counts less for coming later.
            pytest.param([9.0, 5.5, 0.0], [0], id="after-the-first"),
            # 3 and 6/2
            pytest.param([9.0, 6.0, 0.0], [0], id="the-first-of-equal-steps"),
            pytest.param([5.0, -INF, 4.5, 0.0, -INF], [0, 2], id="masked-tokens-are-no-step"),
            pytest.param([-INF, 5.0], [1], id="one-alone"),
            pytest.param([5.0, 5.0, 5.0], [0, 1, 2], id="equal"),
        ],
    )
    def test_cuts_at_the_steepest_step(self, logits: list[float], expected: list[int]) -> None:
        """A step counts by its height over the number of tokens above it."""
        assert expected == stays(MinK(), logits)
        assert expected == stays(MinK(0.0), logits)

    @pytest.mark.parametrize(
        ("tau", "expected"),
        [
            # Over a range of 0.25.
            pytest.param(0.0, [0], id="none"),
            pytest.param(0.49, [0], id="one"),
            pytest.param(0.5, [0, 1], id="two"),
            pytest.param(0.75, [0, 1, 2], id="three"),
            pytest.param(1e38, [0, 1, 2, 3], id="all"),
            pytest.param([0.5], [0, 1], id="per-row"),
        ],
    )
    def test_keeps_more_where_the_logits_hardly_differ(
        self, tau: float | list[float], expected: list[int]
    ) -> None:
        """At least tau over the range, rounded down."""
        assert expected == stays(MinK(tau), [0.25, 0.125, 0.0625, 0.0])

    def test_keeps_ties_at_the_last(self) -> None:
        """Nothing but the logit decides: equal tokens stay or go together."""
        assert [0, 1, 2] == stays(MinK(0.5), [0.25, 0.125, 0.125, 0.0])

    @pytest.mark.parametrize("temperature", [0.01, 0.7, 5.0, 100.0])
    def test_does_not_depend_on_a_temperature(self, temperature: float) -> None:
        """Divided by one number, the steps keep their order."""
        logits = [1.0, 9.0, 0.0, 7.0, 8.0]

        assert [1, 3, 4] == stays(Temperature(temperature) | MinK(0.0), logits)

    def test_keeps_logits_as_they_are(self) -> None:
        """What stays is not rescaled."""
        assert [-INF, 9.0, 8.0] == run(MinK(), [1.0, 9.0, 8.0])

    @pytest.mark.parametrize("tau", [-1.0, float("nan"), [1.0, -1.0]])
    def test_refuses_less_than_nothing(self, tau: float | list[float]) -> None:
        """At 0 only the step decides."""
        with pytest.raises(ValueError, match=r"'tau' must be >= 0.*: got "):
            MinK(tau)
