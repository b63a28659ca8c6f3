"""Removal of NaN and infinite logits."""

import pytest
import torch

from decodekit.processors import RemoveInvalid

from ..by_hand import run

INF, NAN = float("inf"), float("nan")
LARGEST = torch.finfo(torch.float32).max


class TestRemoveInvalid:
    def test_forbids_nan(self) -> None:
        """As 0 it would be the largest of these."""
        assert [-5.0, -INF, -2.0] == run(RemoveInvalid(), [-5.0, NAN, -2.0])

    def test_can_be_told_what_nan_becomes(self) -> None:
        """0 is what it becomes in Hugging Face."""
        assert [-5.0, 0.0, -2.0] == run(RemoveInvalid(nan=0), [-5.0, NAN, -2.0])

    def test_makes_infinity_the_largest_number(self) -> None:
        """And a mask stays a mask."""
        assert [LARGEST, -INF, 1.0] == run(RemoveInvalid(), [INF, -INF, 1.0])

    def test_leaves_nothing_of_a_row_of_nan(self) -> None:
        """A hard constraint: such a row has no token, and the run says so at its end."""
        assert [-INF, -INF] == run(RemoveInvalid(), [NAN, NAN])

    @pytest.mark.parametrize("nan", [NAN, INF])
    def test_refuses_to_put_in_what_it_removes(self, nan: float) -> None:
        """A number, or the mask."""
        with pytest.raises(ValueError, match="'nan' must be finite in float32, or -inf: got"):
            RemoveInvalid(nan=nan)
