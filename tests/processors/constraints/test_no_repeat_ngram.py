"""No repeated n-grams."""

import pytest
import torch

from decodekit.processors import NoRepeatNgram

from ..by_hand import after, kept

EQUAL = [0.25, 0.25, 0.25, 0.25]


class TestNoRepeatNgram:
    @pytest.mark.parametrize(
        ("n", "expected"),
        [
            pytest.param(0, [0, 1, 2, 3], id="off"),
            # 1, 2 and 3 have occurred.
            pytest.param(1, [0], id="every-token-once"),
            # After 1 came 2 and, later, 3.
            pytest.param(2, [0, 1], id="pairs"),
            # After 2, 1 came 3.
            pytest.param(3, [0, 1, 2], id="triples"),
            # The last three tokens have not occurred before.
            pytest.param(4, [0, 1, 2, 3], id="nothing-repeats"),
            pytest.param(8, [0, 1, 2, 3], id="longer-than-the-text"),
            pytest.param([2], [0, 1], id="per-row"),
        ],
    )
    def test_forbids_what_followed_the_same_words(self, n: int | list[int], expected: list[int]) -> None:
        """After 1 2 1 3 2 1, each n forbids what came after the last n - 1 tokens earlier on."""
        assert expected == kept(NoRepeatNgram(n), EQUAL, after([1, 2, 1, 3, 2, 1]))

    def test_counts_the_prompt(self) -> None:
        """A phrase of the prompt is not repeated either."""
        assert [0, 1, 3] == kept(NoRepeatNgram(2), EQUAL, after([1, 2, 1], prompt=3))

    def test_may_leave_nothing(self) -> None:
        """A hard constraint: when all tokens were used, none is left."""
        assert [] == kept(NoRepeatNgram(1), EQUAL, after([0, 1, 2, 3]))

    def test_shorter_rows_are_not_bound_by_longer_neighbours(self) -> None:
        """A row with n = 2 beside one with n = 4 looks at one token, from the first slot on."""
        history = after([1, 2, 1])
        both = history.rows(torch.tensor([0, 0]))

        processed = NoRepeatNgram([2, 4])(torch.zeros(2, 1, 4), both)

        assert [[True, True, False, True], [True] * 4] == (processed[:, 0] == 0).tolist()

    @pytest.mark.parametrize("n", [-1, [2, -3]])
    def test_refuses_negative_n(self, n: int | list[int]) -> None:
        """Off is 0."""
        with pytest.raises(ValueError, match="'n' must be >= 0"):
            NoRepeatNgram(n)
