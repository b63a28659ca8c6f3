"""Renormalisation to log-probabilities."""

import math

import pytest
import torch

from decodekit.processors import Renormalise

from ..by_hand import NOTHING, run


class TestRenormalise:
    def test_gives_logarithms_of_probabilities(self) -> None:
        """4 to 3 to 1, wherever the zero lay."""
        for shift in (0.0, 5.0):
            logits = [math.log(weight) + shift for weight in (4, 3, 1)]

            probs = [math.exp(x) for x in run(Renormalise(), logits)]

            assert [0.5, 0.375, 0.125] == pytest.approx(probs, abs=1e-6)

    def test_spreads_over_what_is_left(self) -> None:
        """A forbidden token has no part."""
        assert [0.0, -float("inf")] == run(Renormalise(), [-7.0, -float("inf")])

    def test_leaves_a_row_without_a_token_alone(self) -> None:
        """Nothing adds up to 1 there."""
        nothing = torch.full((1, 1, 3), -torch.inf)

        assert torch.equal(nothing, Renormalise()(nothing, NOTHING))
