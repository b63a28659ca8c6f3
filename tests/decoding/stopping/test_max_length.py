"""The limit on the length."""

import pytest

from decodekit.decoding import Finish, MaxLength

from .condition_codes import codes


class TestMaxLength:
    def test_counts_the_prompt(self) -> None:
        """Four tokens are two of the prompt and two new ones."""
        assert [[0, 1, 1]] == codes(MaxLength(4), [[9, 9, 1, 2, 3]], prompt=2)

    def test_takes_one_number_a_row(self) -> None:
        """Rows may have different limits; one that the prompt alone reaches leaves one token."""
        assert [[0, 1, 1], [1, 1, 1]] == codes(MaxLength([3, 1]), [[9, 1, 2, 3]] * 2)
        assert Finish("max_length") == MaxLength(3).finishes[0]

    def test_rows_must_match(self) -> None:
        """Two limits for three rows are refused."""
        with pytest.raises(ValueError, match="one for each of the 3 rows: got 2"):
            codes(MaxLength([1, 2]), [[9, 1]] * 3)
