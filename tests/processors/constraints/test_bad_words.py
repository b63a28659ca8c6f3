"""Forbidden words."""

import pytest

from decodekit.processors import BadWords

from ..by_hand import after, kept

EQUAL = [0.25] * 4


class TestBadWords:
    @pytest.mark.parametrize(
        ("ids", "expected"),
        [
            pytest.param([], [0, 2, 3], id="a-single-token-everywhere"),
            pytest.param([0], [0, 3], id="the-last-of-two"),
            pytest.param([3, 3], [0, 2], id="the-last-of-three"),
            pytest.param([3], [0, 2, 3], id="not-before-all-others-came"),
        ],
    )
    def test_forbids_the_last_token_of_a_word(self, ids: list[int], expected: list[int]) -> None:
        """1 is forbidden, 2 after 0, and a third 3."""
        assert expected == kept(BadWords([[1], [0, 2], [3, 3, 3]]), EQUAL, after(ids))

    def test_never_forbids_the_end_alone(self) -> None:
        """A word of one token that ends the sequence is left out; a longer one is not."""
        assert [0, 3] == kept(BadWords([[1], [3], [0, 2]], eos=3), EQUAL, after([0]))
        assert [0, 1, 2] == kept(BadWords([[0, 3]], eos=3), EQUAL, after([0]))

    def test_may_leave_nothing(self) -> None:
        """A hard constraint."""
        assert [] == kept(BadWords([0, 1, 2, 3]), EQUAL)

    @pytest.mark.parametrize("words", ["bad", 3, [["bad"]]])
    def test_refuses_what_is_no_sequence_of_ids(self, words: object) -> None:
        """Text has to be turned into ids first."""
        with pytest.raises(TypeError, match="token"):
            BadWords(words)  # type: ignore[arg-type]
