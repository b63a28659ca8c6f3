"""Allow-list of tokens."""

import pytest

from decodekit.processors import AllowedTokens, SuppressTokens

from ..by_hand import kept, run

PROBS = [0.1, 0.2, 0.3, 0.4]


class TestAllowedTokens:
    def test_forbids_all_others(self) -> None:
        """The allowed keep their logits."""
        assert [-float("inf"), 2.0, -float("inf"), 4.0] == run(AllowedTokens([3, 1]), [1.0, 2.0, 3.0, 4.0])

    def test_is_the_complement_of_suppressing(self) -> None:
        """What the one lets in the other keeps out."""
        assert [0, 1, 2, 3] == sorted(
            kept(AllowedTokens([0, 2]), PROBS) + kept(SuppressTokens([0, 2]), PROBS)
        )

    def test_does_not_let_in_what_was_forbidden(self) -> None:
        """A hard constraint: two that contradict each other leave nothing."""
        assert [] == kept(AllowedTokens([0]) | AllowedTokens([1]), PROBS)

    def test_refuses_none_at_all(self) -> None:
        """Every row would be left without a token."""
        with pytest.raises(ValueError, match="'ids' must name at least one token id: got none"):
            AllowedTokens([])

    def test_refuses_ids_beyond_the_vocabulary(self) -> None:
        """Known only when the logits come."""
        with pytest.raises(ValueError, match="token ids must be < 4, the size of the vocabulary: got 7"):
            kept(AllowedTokens([7, 1]), PROBS)
