"""End-of-sequence logit that grows with the length."""

import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding.history import History
from decodekit.processors import ExponentialLengthDecay, Renormalise

from ...strategies import windows
from ..by_hand import after, run

END = 2


class TestExponentialLengthDecay:
    @pytest.mark.parametrize(
        ("generated", "expected"),
        [
            pytest.param(3, 1.5, id="not-yet"),
            # 1.5 + 1.5 · (2 - 1)
            pytest.param(4, 3.0, id="one-beyond"),
            # 1.5 + 1.5 · (4 - 1)
            pytest.param(5, 6.0, id="two-beyond"),
        ],
    )
    def test_raises_the_end_after_the_start(self, generated: int, expected: float) -> None:
        """Three tokens are free, the two of the prompt do not count."""
        history = after([0] * (2 + generated), prompt=2)

        assert [1.0, -1.0, expected] == run(ExponentialLengthDecay(3, 2.0, END), [1.0, -1.0, 1.5], history)

    def test_raises_a_negative_logit_as_well(self) -> None:
        """-1.5 + 1.5 · (4 - 1)."""
        assert 3.0 == run(ExponentialLengthDecay(0, 2.0, END), [0.0, 0.0, -1.5], after([0, 0]))[END]

    def test_below_1_lowers_it(self) -> None:
        """8 + 8 · (0.25 - 1)."""
        assert 2.0 == run(ExponentialLengthDecay(0, 0.5, END), [0.0, 0.0, 8.0], after([0, 0]))[END]

    def test_of_log_probabilities_moves_a_logit_of_0(self) -> None:
        """Of two equal tokens, log 1/2 is taken off once: twice the weight."""
        decay = ExponentialLengthDecay(0, 2.0, 1, shift_safe=True)

        assert [0.0, 0.6931472] == pytest.approx(run(decay, [0.0, 0.0], after([0])))

    @given(window=windows(dtype=torch.float64), factor=st.floats(0.5, 1.3))
    def test_of_log_probabilities_is_that_of_normalised_logits(
        self, window: tuple[torch.Tensor, History], factor: float
    ) -> None:
        """The same distribution as Renormalise() | ExponentialLengthDecay(start, factor, eos)."""
        logits, history = window
        chain = Renormalise() | ExponentialLengthDecay(1, factor, END)

        safe = ExponentialLengthDecay(1, factor, END, shift_safe=True)(logits, history)

        torch.testing.assert_close(
            safe.softmax(dim=-1), chain(logits, history).softmax(dim=-1), rtol=0, atol=1e-9, equal_nan=True
        )

    def test_overflows_nowhere(self) -> None:
        """0 times infinity is not a number; the largest logit is the largest float32."""
        history = after([0] * 300)

        assert [0.0, 0.0] == run(ExponentialLengthDecay(0, 1e30, 1), [0.0, 0.0], history)
        assert [0.0, 3.4028234663852886e38] == run(ExponentialLengthDecay(0, 1e30, 1), [0.0, 2.0], history)

    @pytest.mark.parametrize("shift_safe", [False, True])
    def test_stays_finite_in_half_precision(self, shift_safe: bool) -> None:
        """1.5^64 is beyond float16; the end becomes its largest number, 65504, and the softmax lives."""
        logits = torch.tensor([[[1.0, 20.0, 40.0]]], dtype=torch.float16)
        decay = ExponentialLengthDecay(0, 1.5, [0, 1], shift_safe=shift_safe)

        processed = decay(logits, after([0] * 64))

        assert [65504.0, 65504.0, 40.0] == processed[0, 0].tolist()

    def test_leaves_a_forbidden_end_forbidden(self) -> None:
        """A minimum length is stronger."""
        decay = ExponentialLengthDecay(0, 2.0, 1)

        assert [0.0, -float("inf")] == run(decay, [0.0, -float("inf")], after([0, 0]))

    @pytest.mark.parametrize(("start", "factor"), [(-1, 2.0), (0, 0.0), (0, -1.0), (0, float("nan"))])
    def test_refuses_what_is_out_of_range(self, start: int, factor: float) -> None:
        """A factor of 0 would be the end of the end."""
        with pytest.raises(ValueError, match="must be "):
            ExponentialLengthDecay(start, factor, END)
