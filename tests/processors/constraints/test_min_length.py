"""Minimum length, prompt included."""

import pytest

from decodekit.processors import MinLength

from ..by_hand import after, kept

EQUAL = [0.25] * 4


class TestMinLength:
    @pytest.mark.parametrize(("length", "expected"), [(0, [0, 1, 2]), (3, [0, 1, 2]), (4, [0, 1, 2, 3])])
    def test_forbids_the_end_until_n_tokens_are_there(self, length: int, expected: list[int]) -> None:
        """Two of them are prompt, and count."""
        assert expected == kept(MinLength(4, 3), EQUAL, after([1] * length, prompt=min(length, 2)))

    def test_refuses_negative_n(self) -> None:
        """Off is 0."""
        with pytest.raises(ValueError, match="'n' must be >= 0"):
            MinLength(-1, 3)
