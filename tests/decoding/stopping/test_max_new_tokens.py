"""The limit on new tokens."""

import pytest

from decodekit.decoding import MaxNewTokens

from .condition_codes import codes


class TestMaxNewTokens:
    def test_counts_what_is_new(self) -> None:
        """The prompt does not count, and the condition stays true."""
        assert [[0, 0, 1, 1]] == codes(MaxNewTokens(3), [[9, 9, 1, 2, 3, 4]], prompt=2)

    def test_takes_one_number_a_row(self) -> None:
        """Rows may have different limits."""
        assert [[0, 1, 1], [1, 1, 1]] == codes(MaxNewTokens([2, 1]), [[9, 1, 2, 3]] * 2)

    @pytest.mark.parametrize("n", [0, -1, [3, 0]])
    def test_must_be_positive(self, n: int | list[int]) -> None:
        """No row has zero tokens: one is always chosen."""
        with pytest.raises(ValueError, match="'n' must be at least 1"):
            MaxNewTokens(n)

    @pytest.mark.parametrize("n", [1.5, True, [], None, "a", [None]])
    def test_must_be_whole(self, n: object) -> None:
        """Fractions, booleans and nothing are no numbers of tokens."""
        with pytest.raises(TypeError, match="'n' must be a whole number"):
            MaxNewTokens(n)  # type: ignore[arg-type]

    def test_rows_must_match(self) -> None:
        """Two limits for three rows are refused."""
        with pytest.raises(ValueError, match="one for each of the 3 rows: got 2"):
            codes(MaxNewTokens([1, 2]), [[9, 1]] * 3)
        with pytest.raises(
            ValueError, match="'n' must be one number in a request of one row, not one for each row: got 2"
        ):
            codes(MaxNewTokens([1, 2]), [[9, 1]])
