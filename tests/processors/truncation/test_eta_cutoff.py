"""Eta cutoff."""

import pytest
import torch

from decodekit.processors import EpsilonCutoff, EtaCutoff

from ..by_hand import NOTHING, kept

# Its entropy is 1.75 bits, and 2^-1.75 = 0.297.
HALVED = [0.125, 0.5, 0.25, 0.125]


class TestEtaCutoff:
    @pytest.mark.parametrize(
        ("epsilon", "expected"),
        [
            pytest.param(0.05, [0, 1, 2, 3], id="epsilon-itself"),
            pytest.param(0.16, [0, 1, 2, 3], id="0.4-times-0.297"),  # 0.119
            pytest.param(0.25, [1, 2], id="0.5-times-0.297"),  # 0.149
            pytest.param(0.81, [1], id="0.9-times-0.297"),  # 0.268
            pytest.param(0.0, [0, 1, 2, 3], id="off"),
            pytest.param([0.25], [1, 2], id="per-row"),
            pytest.param([0], [0, 1, 2, 3], id="per-row-off"),
        ],
    )
    def test_drops_what_is_below_eta(self, epsilon: float | list[float], expected: list[int]) -> None:
        """Eta is the lower of epsilon and its root times the exponential of minus the entropy."""
        assert expected == kept(EtaCutoff(epsilon), HALVED)

    def test_keeps_what_is_exactly_as_likely(self) -> None:
        """Where epsilon is the lower of the two, at it."""
        # No doubt, so the root is the higher one.
        assert [0, 1] == kept(EtaCutoff(2.0**-10), [1 - 2.0**-10, 2.0**-10])

    def test_keeps_all_that_epsilon_keeps(self) -> None:
        """The floor is never above epsilon."""
        logits = 2 * torch.randn(20, 1, 30, generator=torch.Generator().manual_seed(0))

        above = EpsilonCutoff(0.03)(logits, NOTHING) > -torch.inf

        assert ((EtaCutoff(0.03)(logits, NOTHING) > -torch.inf) >= above).all()

    def test_keeps_min_tokens(self) -> None:
        """So many stay however high the floor is."""
        assert [1, 2] == kept(EtaCutoff(0.81, min_tokens=2), HALVED)

    @pytest.mark.parametrize("epsilon", [-0.1, 1.0, float("nan"), [0.5, 2.0]])
    def test_refuses_what_is_no_floor(self, epsilon: float | list[float]) -> None:
        """Epsilon is a probability."""
        with pytest.raises(ValueError, match=r"'epsilon' must be in \[0, 1\).*: got "):
            EtaCutoff(epsilon)

    def test_refuses_to_spare_none(self) -> None:
        """A row without a token is no distribution."""
        with pytest.raises(ValueError, match="'min_tokens' must be >= 1: got 0"):
            EtaCutoff(0.1, min_tokens=0)
