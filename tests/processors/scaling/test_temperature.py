"""Temperature."""

import pytest

from decodekit.processors import Temperature

from ..by_hand import run


class TestTemperature:
    def test_divides_the_logits(self) -> None:
        """At 0.5 differences double, at 2 they halve."""
        assert [4.0, -2.0, 0.0] == run(Temperature(0.5), [2.0, -1.0, 0.0])
        assert [1.0, -0.5, 0.0] == run(Temperature(2), [2.0, -1.0, 0.0])

    @pytest.mark.parametrize("temperature", [0, 0.0, [1.0, 0.0]])
    def test_zero_names_greedy(self, temperature: float | list[float]) -> None:
        """The message for temperature 0 names ``Greedy()``."""
        with pytest.raises(ValueError, match=r"'temperature' must be > 0.*Greedy\(\).*: got .*0"):
            Temperature(temperature)

    @pytest.mark.parametrize("temperature", [-1.0, float("nan"), float("inf"), 1e-39, 1e39])
    def test_refuses_what_float32_cannot_divide_by(self, temperature: float) -> None:
        """What is 0 or infinite among float32 logits would make NaN of them."""
        with pytest.raises(ValueError, match="'temperature' must be"):
            Temperature(temperature)

    def test_prints_as_it_was_written(self) -> None:
        """The representation is the call."""
        assert "Temperature(temperature=0.8)" == repr(Temperature(0.8))
