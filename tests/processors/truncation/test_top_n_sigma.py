"""Top-nσ filtering."""

import pytest

from decodekit.processors import Temperature, TopNSigma

from ..by_hand import run, stays

INF = float("inf")


class TestTopNSigma:
    @pytest.mark.parametrize(
        ("n", "expected"),
        [
            # The mean is 3 and the deviation 2.
            pytest.param(0.5, [0, 3], id="floor-4"),
            pytest.param(1.9, [0, 3], id="floor-1.2"),
            pytest.param(2.0, [0, 1, 2, 3], id="floor-1-is-met"),
            pytest.param(1e38, [0, 1, 2, 3], id="beyond-all"),
            pytest.param(0.0, [0, 1, 2, 3], id="off"),
            pytest.param([0.5], [0, 3], id="per-row"),
            pytest.param([0], [0, 1, 2, 3], id="per-row-off"),
        ],
    )
    def test_drops_what_is_below_the_floor(self, n: float | list[float], expected: list[int]) -> None:
        """The floor lies n deviations below the largest logit."""
        assert expected == stays(TopNSigma(n), [5.0, 1.0, 1.0, 5.0])

    def test_divides_by_the_number_of_tokens(self) -> None:
        """Of two logits the deviation is half their distance; by one less it would be 1.4 times that."""
        assert [0] == stays(TopNSigma(1.9), [2.0, 0.0])

    def test_does_not_count_masked_tokens(self) -> None:
        """Neither in the mean nor in the number."""
        assert [0, 5] == stays(TopNSigma(1.9), [5.0, -INF, 1.0, -INF, 1.0, 5.0])
        assert [0, 2, 4, 5] == stays(TopNSigma(2.0), [5.0, -INF, 1.0, -INF, 1.0, 5.0])

    def test_leaves_equal_logits_alone(self) -> None:
        """Without a deviation all lie on the floor, and so does a token alone."""
        assert [0, 1, 2] == stays(TopNSigma(0.1), [7.0, 7.0, 7.0])
        assert [1] == stays(TopNSigma(0.1), [-INF, 7.0])

    @pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e4, 1e30])
    def test_does_not_depend_on_the_scale(self, scale: float) -> None:
        """What a temperature does to the logits it does to the floor."""
        logits = [5.0, 1.0, 1.5, 4.0, -2.0]

        assert [0, 3] == stays(TopNSigma(1.0), logits)
        assert [0, 3] == stays(TopNSigma(1.0), [scale * x for x in logits])
        assert [0, 3] == stays(Temperature(10.0) | TopNSigma(1.0), logits)

    def test_keeps_logits_as_they_are(self) -> None:
        """What stays is not rescaled."""
        assert [5.0, -INF, 4.0] == run(TopNSigma(1.0), [5.0, -5.0, 4.0])

    @pytest.mark.parametrize("n", [-1.0, float("nan"), [1.0, -1.0]])
    def test_refuses_a_floor_above_the_largest(self, n: float | list[float]) -> None:
        """Off is 0, not -1."""
        with pytest.raises(ValueError, match=r"'n' must be >= 0 \(0 is off\).*: got "):
            TopNSigma(n)
