"""Logit bias."""

import math
from typing import Any

import pytest

from decodekit.processors import LogitBias

from ..by_hand import run


class TestLogitBias:
    def test_adds_to_the_named_tokens(self) -> None:
        """Others are left alone, and -inf forbids."""
        bias = LogitBias({2: 1.5, 0: -math.inf, 1: -2})

        assert [-math.inf, -1.0, 2.5, 1.0] == run(bias, [1.0, 1.0, 1.0, 1.0])

    def test_is_a_copy_of_what_it_was_given(self) -> None:
        """The caller's mapping may change later."""
        given = {1: 0.5}
        bias = LogitBias(given)

        given[1] = 9.0

        assert [0.0, 0.5] == run(bias, [0.0, 0.0])
        assert "LogitBias(biases={1: 0.5})" == repr(bias)

    @pytest.mark.parametrize("bias", [math.inf, math.nan, 1e39, -1e39])
    def test_refuses_biases_that_make_nan_or_infinity(self, bias: float) -> None:
        """-inf forbids; +inf would make NaN of a forbidden token."""
        with pytest.raises(ValueError, match="a bias must be finite in float32, or -inf"):
            LogitBias({1: bias})

    def test_refuses_negative_ids(self) -> None:
        """Token -1 is padding, not the last token."""
        with pytest.raises(ValueError, match="token ids must be >= 0: got -1"):
            LogitBias({-1: 1.0})

    def test_refuses_ids_beyond_the_vocabulary(self) -> None:
        """Known only when the logits come."""
        with pytest.raises(ValueError, match="token ids must be < 4, the size of the vocabulary: got 4"):
            run(LogitBias({0: 1.0, 4: 1.0}), [0.0] * 4)

    @pytest.mark.parametrize(
        "biases", [[(1, 2.0)], None, {"a": 1.0}, {1: "a"}, {1: True}, {True: 1.0}, {1.5: 1.0}]
    )
    def test_refuses_what_is_no_mapping_of_ids_to_numbers(self, biases: Any) -> None:
        """Types are checked on both sides."""
        with pytest.raises(TypeError, match="must"):
            LogitBias(biases)
