"""Discouraging what was said, in proportion to its logit."""

import pytest

from decodekit.processors import RepetitionPenalty

from .by_hand import after, run


class TestRepetitionPenalty:
    def test_divides_positive_and_multiplies_negative_logits(self) -> None:
        """Either way the token becomes less likely; how often it occurred does not matter."""
        history = after([0, 1, 1, 1, 2])

        assert [1.0, -4.0, 0.0, 5.0] == run(RepetitionPenalty(2.0), [2.0, -2.0, 0.0, 5.0], history)

    def test_below_1_rewards(self) -> None:
        """The inverse penalty turns around."""
        assert [4.0, -1.0] == run(RepetitionPenalty(0.5), [2.0, -2.0], after([0, 1]))

    def test_counts_the_prompt_unless_told_otherwise(self) -> None:
        """The first of the two tokens is prompt."""
        history = after([0, 1], prompt=1)

        assert [1.0, 1.0, 2.0] == run(RepetitionPenalty(2.0), [2.0, 2.0, 2.0], history)
        assert [2.0, 1.0, 2.0] == run(RepetitionPenalty(2.0, include_prompt=False), [2.0, 2.0, 2.0], history)

    def test_at_the_very_start_changes_nothing(self) -> None:
        """Nothing has occurred yet, token 0 neither."""
        assert [2.0, 2.0] == run(RepetitionPenalty(2.0), [2.0, 2.0], after([]))

    @pytest.mark.parametrize("penalty", [0.0, -1.0, 1e-39, float("nan"), float("inf"), [1.0, 0.0]])
    def test_refuses_what_is_not_positive(self, penalty: float | list[float]) -> None:
        """A penalty of 0 would make NaN of 0 logits."""
        with pytest.raises(ValueError, match="'penalty' must be "):
            RepetitionPenalty(penalty)

    def test_refuses_a_number_for_include_prompt(self) -> None:
        """The second parameter is a switch."""
        with pytest.raises(TypeError, match="include_prompt"):
            RepetitionPenalty(1.2, 64)  # type: ignore[arg-type]
