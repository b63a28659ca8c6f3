"""Reward for the prompt's tokens."""

import pytest

from decodekit.processors import EncoderRepetitionPenalty

from ..by_hand import after, run


class TestEncoderRepetitionPenalty:
    def test_rewards_the_prompts_tokens(self) -> None:
        """0 and 1 are prompt, 2 has been generated."""
        history = after([0, 1, 2], prompt=2)

        assert [4.0, -1.0, 2.0] == run(EncoderRepetitionPenalty(2.0), [2.0, -2.0, 2.0], history)

    def test_below_1_discourages_them(self) -> None:
        """The inverse turns around."""
        assert [1.0, -4.0] == run(EncoderRepetitionPenalty(0.5), [2.0, -2.0], after([0, 1], prompt=2))

    def test_without_a_prompt_changes_nothing(self) -> None:
        """Not even token 0."""
        assert [2.0, 2.0] == run(EncoderRepetitionPenalty(2.0), [2.0, 2.0], after([0, 1]))

    @pytest.mark.parametrize("penalty", [0.0, -1.0, 1e-39, 1e38, float("nan"), [1.0, 0.0]])
    def test_refuses_what_has_no_inverse(self, penalty: float | list[float]) -> None:
        """Among float32 logits."""
        with pytest.raises(ValueError, match="'penalty' must be "):
            EncoderRepetitionPenalty(penalty)
