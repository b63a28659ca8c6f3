"""Temperature that grows with the entropy."""

import pytest
import torch

from decodekit.processors import DynamicTemperature, Temperature

from ..by_hand import NOTHING, run

INF = float("inf")
# The entropy is 1.75 bits of 2: 7/8.
HALVED = torch.tensor([0.125, 0.5, 0.25, 0.125]).log().tolist()


class TestDynamicTemperature:
    @pytest.mark.parametrize(
        ("low", "high", "exponent", "expected"),
        [
            pytest.param(1.0, 3.0, 1.0, 2.75, id="seven-eighths-of-the-way"),
            pytest.param(1.0, 3.0, 2.0, 2.53125, id="squared"),  # 49/64
            pytest.param(3.0, 1.0, 1.0, 1.25, id="downwards"),
            pytest.param(2.0, 2.0, 1.0, 2.0, id="nowhere"),
            pytest.param([1.0], 3.0, [2.0], 2.53125, id="per-row"),
            pytest.param([1.0], [1.0], 1.0, 1.0, id="per-row-off"),
        ],
    )
    def test_lies_between_low_and_high(
        self, low: float | list[float], high: float | list[float], exponent: float, expected: float
    ) -> None:
        """As far along as the entropy is on its way to the highest possible."""
        scaled = run(DynamicTemperature(low, high, exponent), HALVED)

        assert pytest.approx([x / expected for x in HALVED], rel=1e-6) == scaled

    def test_counts_only_the_tokens_that_are_left(self) -> None:
        """The highest possible entropy is theirs."""
        scaled = run(DynamicTemperature(1.0, 3.0), [-INF, *HALVED, -INF])

        assert pytest.approx([-INF, *(x / 2.75 for x in HALVED), -INF], rel=1e-6) == scaled

    def test_is_high_for_a_uniform_distribution(self) -> None:
        """Exactly."""
        assert [0.5, 0.5, -INF, 0.5] == run(DynamicTemperature(1.0, 4.0), [2.0, 2.0, -INF, 2.0])

    def test_is_low_for_a_certain_one(self) -> None:
        """Exactly, where the second token's probability is 0."""
        assert [0.0, -400.0] == run(DynamicTemperature(0.5, 4.0), [0.0, -200.0])

    def test_leaves_a_token_alone_as_it_is(self) -> None:
        """It has no uncertainty to speak of, whatever the logit."""
        assert [-INF, 3.0] == run(DynamicTemperature(0.5, 4.0), [-INF, 3.0])

    def test_between_equals_is_that_temperature(self) -> None:
        """Bit for bit."""
        logits = torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(0))

        expected = Temperature(0.7)(logits, NOTHING)

        assert torch.equal(expected, DynamicTemperature(0.7, 0.7, exponent=0.3)(logits, NOTHING))

    @pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0, 0.7])
    def test_takes_an_exponent_per_row_as_the_number(self, exponent: float) -> None:
        """Bit for bit, also where a power of a number has a shortcut."""
        rng = torch.Generator().manual_seed(0)
        logits = torch.randn(1, 500, 20, generator=rng, dtype=torch.float64)

        expected = DynamicTemperature(0.5, 1.5, exponent)(logits, NOTHING)

        assert torch.equal(expected, DynamicTemperature(0.5, 1.5, [exponent])(logits, NOTHING))

    @pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), [1.0, 0.0]])
    def test_refuses_what_cannot_divide(self, bad: float | list[float]) -> None:
        """All three are positive."""
        for name in ("low", "high", "exponent"):
            with pytest.raises(ValueError, match=f"'{name}' must be > 0.*: got "):
                DynamicTemperature(**{"low": 0.5, "high": 1.5, name: bad})
