"""Epsilon cutoff."""

import math

import pytest
import torch

from decodekit.processors import EpsilonCutoff

from ..by_hand import NOTHING, kept, run

PROBS = [0.15, 0.5, 0.05, 0.3]
HALVED = [0.125, 0.5, 0.25, 0.125]


class TestEpsilonCutoff:
    @pytest.mark.parametrize(
        ("epsilon", "expected"),
        [
            pytest.param(0.01, [0, 1, 2, 3], id="below-all"),
            pytest.param(0.1, [0, 1, 3], id="three-above"),
            pytest.param(0.2, [1, 3], id="two-above"),
            pytest.param(0.4, [1], id="one-above"),
            pytest.param(0.9, [1], id="the-top-token-stays"),
            pytest.param(0.0, [0, 1, 2, 3], id="off"),
            pytest.param([0.2], [1, 3], id="per-row"),
            pytest.param([0], [0, 1, 2, 3], id="per-row-off"),
        ],
    )
    def test_drops_what_is_less_likely(self, epsilon: float | list[float], expected: list[int]) -> None:
        """Only the probability decides."""
        assert expected == kept(EpsilonCutoff(epsilon), PROBS)

    def test_keeps_what_is_exactly_as_likely(self) -> None:
        """The floor itself is no reason to go."""
        assert [1, 2] == kept(EpsilonCutoff(0.25), HALVED)
        assert [0, 1, 2, 3] == kept(EpsilonCutoff(0.125), HALVED)

    def test_looks_at_what_the_survivors_make_of_it(self) -> None:
        """0.05 of what a row began with is 0.25 of what is left."""
        assert [2, 3] == kept(EpsilonCutoff(0.2), [0.0, 0.0, 0.05, 0.15])

    @pytest.mark.parametrize(
        ("min_tokens", "expected"),
        [
            pytest.param(1, [1], id="one"),
            pytest.param(2, [1, 2], id="two"),
            pytest.param(3, [0, 1, 2, 3], id="three-and-its-tie"),
            pytest.param(99, [0, 1, 2, 3], id="more-than-there-are"),
        ],
    )
    def test_keeps_min_tokens(self, min_tokens: int, expected: list[int]) -> None:
        """So many stay however high the floor is."""
        assert expected == kept(EpsilonCutoff(0.5, min_tokens=min_tokens), HALVED)

    def test_spares_by_the_logit(self) -> None:
        """Where the probabilities have all become 0, the logits still differ."""
        assert [0.0, -200.0, -float("inf")] == run(EpsilonCutoff(0.1, min_tokens=2), [0.0, -200.0, -300.0])

    def test_sees_what_is_next_to_impossible(self) -> None:
        """A floor below what the sums resolve still tells tokens apart."""
        unlikely = [0.0, -25.0, -27.0]  # 1.4e-11 and 1.9e-12

        assert [0.0, -25.0, -float("inf")] == run(EpsilonCutoff(5e-12), unlikely)

    def test_of_a_row_is_the_number_to_the_last_bit(self) -> None:
        """On the floor of a hundred distributions, a token stays for a row's number as for the number."""
        for epsilon in torch.linspace(0.01, 0.4, 100, dtype=torch.float64).tolist():
            weight = 3 * epsilon / (1 - epsilon)
            logits = torch.tensor([[[0.0, 0.0, 0.0, math.log(weight)]]])

            assert torch.equal(
                EpsilonCutoff(epsilon)(logits, NOTHING), EpsilonCutoff([epsilon])(logits, NOTHING)
            )

    @pytest.mark.parametrize("epsilon", [-0.1, 1.0, float("nan"), [0.5, 2.0]])
    def test_refuses_what_is_no_floor(self, epsilon: float | list[float]) -> None:
        """At 1 nothing would pass."""
        with pytest.raises(ValueError, match=r"'epsilon' must be in \[0, 1\).*: got "):
            EpsilonCutoff(epsilon)

    def test_refuses_to_spare_none(self) -> None:
        """A row without a token is no distribution."""
        with pytest.raises(ValueError, match="'min_tokens' must be >= 1: got 0"):
            EpsilonCutoff(0.1, min_tokens=0)

    @pytest.mark.parametrize("min_tokens", [1.5, True, [2], None])
    def test_refuses_what_counts_nothing(self, min_tokens: int) -> None:
        """It is one number for all rows."""
        with pytest.raises(TypeError, match="'min_tokens' must be an integer: got "):
            EpsilonCutoff(0.1, min_tokens=min_tokens)
