"""Presence penalty."""

import pytest

from decodekit.processors import PresencePenalty

from ..by_hand import after, run


class TestPresencePenalty:
    def test_subtracts_once_however_often_a_token_occurred(self) -> None:
        """Token 1 occurred once and token 2 three times."""
        history = after([1, 2, 2, 2])

        assert [4.0, 3.5, 3.5] == run(PresencePenalty(0.5), [4.0, 4.0, 4.0], history)

    def test_leaves_the_prompt_out_unless_told_otherwise(self) -> None:
        """The first of the two tokens is prompt."""
        history = after([1, 2], prompt=1)

        assert [4.0, 4.0, 3.5] == run(PresencePenalty(0.5), [4.0, 4.0, 4.0], history)
        assert [4.0, 3.5, 3.5] == run(PresencePenalty(0.5, include_prompt=True), [4.0, 4.0, 4.0], history)

    def test_below_0_rewards(self) -> None:
        """A negative penalty adds."""
        assert [4.0, 4.5] == run(PresencePenalty(-0.5), [4.0, 4.0], after([1]))

    def test_cannot_lift_a_forbidden_token(self) -> None:
        """The largest reward that float32 knows leaves -inf where it is."""
        reward = PresencePenalty(-3.4e38)

        assert [-float("inf"), 0.0] == run(reward, [-float("inf"), 0.0], after([0, 0]))

    def test_counts_in_a_window_of_the_last_tokens(self) -> None:
        """Of 0 1 1 the last two, and of these the generated one unless the prompt counts."""
        history = after([0, 1, 1], prompt=2)

        assert [2.0, 1.5] == run(PresencePenalty(0.5, include_prompt=True, window=2), [2.0, 2.0], history)
        assert [2.0, 1.5] == run(PresencePenalty(0.5, window=3), [2.0, 2.0], history)

    @pytest.mark.parametrize("window", [-1, [2, -1]])
    def test_refuses_a_negative_window(self, window: int | list[int]) -> None:
        """0 counts nothing, None all."""
        with pytest.raises(ValueError, match="'window' must be >= 0, or None for all"):
            PresencePenalty(1.5, window=window)

    @pytest.mark.parametrize("penalty", [float("nan"), float("inf"), 1e39, [0.0, float("nan")]])
    def test_refuses_what_is_not_finite(self, penalty: float | list[float]) -> None:
        """Infinity times nothing is NaN."""
        with pytest.raises(ValueError, match="'penalty' must be "):
            PresencePenalty(penalty)
