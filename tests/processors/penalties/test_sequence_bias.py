"""Sequence bias."""

import pytest

from decodekit.processors import LogitBias, SequenceBias

from ..by_hand import after, run

ZEROS = [0.0] * 4


class TestSequenceBias:
    @pytest.mark.parametrize(
        ("ids", "expected"),
        [
            pytest.param([], [0.0, 0.5, 0.0, 0.0], id="a-single-token-always"),
            pytest.param([0], [0.0, 0.5, 2.0, 0.0], id="the-last-of-two"),
            pytest.param([3, 0], [0.0, 4.5, 2.0, 0.0], id="and-of-three"),
            pytest.param([0, 3], [0.0, 0.5, 0.0, 0.0], id="not-in-another-order"),
            pytest.param([0, 3, 0, 2], [0.0, 0.5, 0.0, 0.0], id="only-what-has-just-come"),
        ],
    )
    def test_completes_sequences(self, ids: list[int], expected: list[float]) -> None:
        """1 always gets 0.5; 2 after 0 gets 2; 1 after 3 0 gets 4 more."""
        bias = SequenceBias({(1,): 0.5, (0, 2): 2.0, (3, 0, 1): 4.0})

        assert expected == run(bias, ZEROS, after(ids))

    def test_of_single_tokens_is_a_logit_bias(self) -> None:
        """An id alone is a sequence of one."""
        biases = {2: 0.5, 0: -1.0}

        assert run(LogitBias(biases), ZEROS) == run(SequenceBias(biases), ZEROS)

    def test_counts_the_prompt_as_what_came(self) -> None:
        """A sequence may begin in the prompt."""
        assert [0.0, 0.0, 2.0, 0.0] == run(SequenceBias({(0, 2): 2.0}), ZEROS, after([0], prompt=1))

    def test_forbids_with_minus_infinity(self) -> None:
        """Whatever else is added."""
        bias = SequenceBias({(0, 2): -float("inf"), (2,): 9.0})

        assert [0.0, 0.0, -float("inf"), 0.0] == run(bias, ZEROS, after([0]))

    def test_knows_prompts_of_ids_without_a_logit(self) -> None:
        """An embedding may know more ids than the head scores; the last has to have a logit."""
        assert [0.0, 1.0, 0.0, 0.0] == run(SequenceBias({(9, 1): 1.0}), ZEROS, after([9]))
        with pytest.raises(ValueError, match="token ids must be < 4, the size of the vocabulary: got 9"):
            run(SequenceBias({(1, 9): 1.0}), ZEROS, after([1]))

    @pytest.mark.parametrize(
        ("biases", "error", "message"),
        [
            ([(0, 1)], TypeError, "'biases' must map token sequences to numbers"),
            ({(0, 1): "1"}, TypeError, "a bias must be a number: got '1'"),
            ({(0, 1): float("nan")}, ValueError, "a bias must be finite in float32"),
            ({(0, 1): 3e38, (1,): 3e38}, ValueError, "'biases' must add up to a number finite in float32"),
            ({(): 1.0}, ValueError, "at least one id"),
            ({(0, None): 1.0}, TypeError, "token ids must be integers: got None"),
            ({(0, -1): 1.0}, ValueError, "token ids must be >= 0: got -1"),
        ],
    )
    def test_refuses_what_is_no_bias(self, biases: object, error: type[Exception], message: str) -> None:
        """The message says what and why."""
        with pytest.raises(error, match=message):
            SequenceBias(biases)  # type: ignore[arg-type]
