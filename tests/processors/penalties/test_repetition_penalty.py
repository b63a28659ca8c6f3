"""Repetition penalty."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding.history import History
from decodekit.processors import Renormalise, RepetitionPenalty

from ...strategies import windows
from ..by_hand import after, run


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

    def test_counts_in_a_window_of_the_last_tokens(self) -> None:
        """Of 0 1 1 the last two, and of these the generated one unless the prompt counts."""
        history = after([0, 1, 1], prompt=2)

        assert [2.0, 1.0] == run(RepetitionPenalty(2.0, window=2), [2.0, 2.0], history)
        assert [2.0, 1.0] == run(RepetitionPenalty(2.0, include_prompt=False, window=3), [2.0, 2.0], history)

    @pytest.mark.parametrize("window", [-1, [2, -1]])
    def test_refuses_a_negative_window(self, window: int | list[int]) -> None:
        """0 counts nothing, None all."""
        with pytest.raises(ValueError, match="'window' must be >= 0, or None for all"):
            RepetitionPenalty(1.5, window=window)

    def test_of_log_probabilities_knows_no_zero(self) -> None:
        """Of 3 to 1 the likelier token was said: 3/4 squared, and 1/4 as it was, wherever the zero lay."""
        penalty = RepetitionPenalty(2.0, shift_safe=True)
        for shift in (0.0, 4.0, -4.0):
            logits = [math.log(3) + shift, math.log(1) + shift]

            said, other = run(penalty, logits, after([0]))

            assert (9 / 16) / (1 / 4) == pytest.approx(math.exp(said - other), rel=1e-5)

    @given(window=windows(dtype=torch.float64), penalty=st.floats(0.2, 3.0))
    def test_of_log_probabilities_is_that_of_normalised_logits(
        self, window: tuple[torch.Tensor, History], penalty: float
    ) -> None:
        """The same distribution as Renormalise() | RepetitionPenalty(penalty)."""
        logits, history = window
        chain = Renormalise() | RepetitionPenalty(penalty)

        safe = RepetitionPenalty(penalty, shift_safe=True)(logits, history)

        torch.testing.assert_close(
            safe.softmax(dim=-1), chain(logits, history).softmax(dim=-1), rtol=0, atol=1e-9, equal_nan=True
        )

    @pytest.mark.parametrize("penalty", [0.0, -1.0, 1e-39, float("nan"), float("inf"), [1.0, 0.0]])
    def test_refuses_what_is_not_positive(self, penalty: float | list[float]) -> None:
        """A penalty of 0 would make NaN of 0 logits."""
        with pytest.raises(ValueError, match="'penalty' must be "):
            RepetitionPenalty(penalty)

    def test_refuses_a_number_for_include_prompt(self) -> None:
        """The second parameter is a switch."""
        with pytest.raises(TypeError, match="include_prompt"):
            RepetitionPenalty(1.2, 64)  # type: ignore[arg-type]

    def test_fades_only_beyond_a_window(self) -> None:
        """All tokens count without one: there is nothing beyond."""
        with pytest.raises(ValueError, match="'fade' must come with a 'window': got 5 without one"):
            RepetitionPenalty(1.3, fade=5)

    def test_fades_out(self) -> None:
        """In a window of 1 and a fade of 2: wholly, then half, then no more."""
        assert [2.0, 3.0, 4.0] == run(
            RepetitionPenalty(2.0, window=1, fade=2), [4.0, 4.0, 4.0], after([2, 1, 0])
        )
