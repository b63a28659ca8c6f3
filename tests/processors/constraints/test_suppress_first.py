"""Suppressed tokens at the start of generation."""

import pytest

from decodekit.processors import SuppressFirst

from ..by_hand import after, kept

EQUAL = [0.25] * 4


class TestSuppressFirst:
    def test_forbids_them_as_the_first_generated_token(self) -> None:
        """The prompt does not count."""
        suppress = SuppressFirst([0, 3])

        assert [1, 2] == kept(suppress, EQUAL, after([1, 1], prompt=2))
        assert [0, 1, 2, 3] == kept(suppress, EQUAL, after([1, 1, 2], prompt=2))

    @pytest.mark.parametrize(("generated", "expected"), [(0, [1, 2]), (1, [1, 2]), (2, [0, 1, 2, 3])])
    def test_forbids_them_among_the_first_n(self, generated: int, expected: list[int]) -> None:
        """Two tokens long."""
        history = after([1] * (3 + generated), prompt=3)

        assert expected == kept(SuppressFirst([0, 3], 2), EQUAL, history)

    def test_refuses_negative_n(self) -> None:
        """Off is 0."""
        with pytest.raises(ValueError, match="'n' must be >= 0"):
            SuppressFirst([1], -1)
