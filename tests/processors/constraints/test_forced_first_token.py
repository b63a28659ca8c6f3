"""Forced first generated token."""

import pytest

from decodekit.processors import ForcedFirstToken, SuppressTokens

from ..by_hand import after, kept, run

EQUAL = [0.25] * 4


class TestForcedFirstToken:
    def test_forces_the_first_generated_token(self) -> None:
        """After a prompt of two tokens, and not after three."""
        assert [2] == kept(ForcedFirstToken(2), EQUAL, after([1, 1], prompt=2))
        assert [0, 1, 2, 3] == kept(ForcedFirstToken(2), EQUAL, after([1, 1, 2], prompt=2))

    def test_takes_several_tokens(self) -> None:
        """One of several languages, for one."""
        assert [0, 3] == kept(ForcedFirstToken([3, 0]), EQUAL, after([]))

    def test_keeps_the_logit(self) -> None:
        """Its probability under the model can still be read."""
        assert [-float("inf"), 7.0] == run(ForcedFirstToken(1), [5.0, 7.0])

    def test_does_not_let_in_what_was_forbidden(self) -> None:
        """A hard constraint: two that contradict each other leave nothing."""
        assert [] == kept(SuppressTokens(1) | ForcedFirstToken(1), EQUAL)

    def test_refuses_none_at_all(self) -> None:
        """The row would be left without a token."""
        with pytest.raises(ValueError, match="'tokens' must name at least one token id: got none"):
            ForcedFirstToken([])
