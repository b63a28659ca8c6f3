"""Minimum number of generated tokens."""

import pytest

from decodekit.processors import MinNewTokens

from ..by_hand import after, kept, run

EQUAL = [0.25, 0.25, 0.25, 0.25]


class TestMinNewTokens:
    @pytest.mark.parametrize(
        ("ids", "expected"),
        [
            pytest.param([1, 1, 1], [0, 1, 2], id="none-generated"),
            pytest.param([1, 1, 1, 2], [0, 1, 2], id="one-too-few"),
            pytest.param([1, 1, 1, 2, 2], [0, 1, 2, 3], id="enough"),
            pytest.param([1, 1, 1, 2, 2, 2], [0, 1, 2, 3], id="more"),
        ],
    )
    def test_forbids_the_end_until_n_tokens_are_there(self, ids: list[int], expected: list[int]) -> None:
        """Three prompt tokens do not count towards the two."""
        assert expected == kept(MinNewTokens(2, 3), EQUAL, after(ids, prompt=3))

    def test_knows_several_ends(self) -> None:
        """All of them are forbidden."""
        assert [1, 2] == kept(MinNewTokens(1, [3, 0]), EQUAL, after([]))

    def test_refuses_negative_n(self) -> None:
        """Off is 0."""
        with pytest.raises(ValueError, match="'n' must be >= 0"):
            MinNewTokens(-1, 3)

    def test_refuses_ids_beyond_the_vocabulary(self) -> None:
        """Known only when the logits come."""
        with pytest.raises(ValueError, match="token ids must be < 4, the size of the vocabulary: got 4"):
            run(MinNewTokens(1, [4]), [0.0] * 4, after([]))

    def test_refuses_a_missing_id(self) -> None:
        """A tokenizer without an end gives None, and that is said."""
        with pytest.raises(TypeError, match="token ids must be integers: got None"):
            MinNewTokens(1, None)  # type: ignore[arg-type]
