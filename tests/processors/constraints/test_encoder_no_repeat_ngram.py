"""No repeated n-grams of the prompt."""

import pytest
import torch

from decodekit.processors import EncoderNoRepeatNgram

from ..by_hand import after, kept

EQUAL = [0.25] * 4


class TestEncoderNoRepeatNgram:
    @pytest.mark.parametrize(
        ("n", "expected"),
        [
            pytest.param(0, [0, 1, 2, 3], id="off"),
            pytest.param(1, [0], id="tokens-of-the-prompt"),
            # 1 2 stands in the prompt; 1 3 has been generated.
            pytest.param(2, [0, 1, 3], id="pairs-of-the-prompt"),
            pytest.param(3, [0, 1, 3], id="triples-of-the-prompt"),
            pytest.param(4, [0, 1, 2, 3], id="nothing-so-long"),
            pytest.param([2], [0, 1, 3], id="per-row"),
        ],
    )
    def test_forbids_what_followed_the_same_words_in_the_prompt(
        self, n: int | list[int], expected: list[int]
    ) -> None:
        """The prompt is 3 1 2; then came 0 1 3 1."""
        assert expected == kept(EncoderNoRepeatNgram(n), EQUAL, after([3, 1, 2, 0, 1, 3, 1], prompt=3))

    def test_forbids_no_phrase_that_ends_after_the_prompt(self) -> None:
        """1 2 ends in the first generated token."""
        assert [0, 1, 2, 3] == kept(EncoderNoRepeatNgram(2), EQUAL, after([1, 2, 1], prompt=1))

    def test_knows_one_n_per_row(self) -> None:
        """A row with n = 2 beside one with n = 4, and one that is off."""
        history = after([3, 1, 2, 3, 1], prompt=3).rows(torch.tensor([0, 0, 0]))

        processed = EncoderNoRepeatNgram([2, 4, 0])(torch.zeros(3, 1, 4), history)

        assert [3, 4, 4] == (processed == 0).sum(dim=-1)[:, 0].tolist()

    def test_refuses_negative_n(self) -> None:
        """Off is 0."""
        with pytest.raises(ValueError, match="'n' must be >= 0"):
            EncoderNoRepeatNgram(-1)
