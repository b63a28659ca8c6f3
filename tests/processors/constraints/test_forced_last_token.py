"""Forced last token before a length limit."""

from typing import Any

import pytest
import torch

from decodekit.processors import ForcedLastToken

from ..by_hand import after, kept

EQUAL = [0.25] * 4
ANY = [0, 1, 2, 3]


class TestForcedLastToken:
    @pytest.mark.parametrize(("length", "expected"), [(3, ANY), (4, [2]), (5, ANY)])
    @pytest.mark.parametrize("limit", [{"max_length": 5}, {"max_new_tokens": 3}], ids=str)
    def test_forces_the_last_token_of_a_limit(
        self, length: int, expected: list[int], limit: dict[str, int]
    ) -> None:
        """With two prompt tokens, five in all are three new ones."""
        assert expected == kept(ForcedLastToken(2, **limit), EQUAL, after([1] * length, prompt=2))

    def test_takes_several_tokens(self) -> None:
        """Any of the model's ends."""
        assert [0, 3] == kept(ForcedLastToken([3, 0], max_new_tokens=1), EQUAL)

    @pytest.mark.parametrize("name", ["max_length", "max_new_tokens"])
    def test_knows_a_limit_per_row(self, name: str) -> None:
        """One row ends here, the other one later."""
        history = after([1]).rows(torch.tensor([0, 0]))
        last: dict[str, Any] = {name: [2, 3]}

        processed = ForcedLastToken(1, **last)(torch.zeros(2, 1, 4), history)

        assert [1, 4] == (processed > -torch.inf).sum(dim=-1)[:, 0].tolist()

    @pytest.mark.parametrize("limits", [{}, {"max_length": 3, "max_new_tokens": 2}], ids=str)
    def test_takes_one_limit(self, limits: dict[str, int]) -> None:
        """Neither none nor two."""
        with pytest.raises(ValueError, match="one of 'max_new_tokens' and 'max_length' must be given"):
            ForcedLastToken(1, **limits)

    @pytest.mark.parametrize("limit", [{"max_length": 0}, {"max_new_tokens": 0}], ids=str)
    def test_refuses_a_limit_that_lets_nothing_through(self, limit: dict[str, int]) -> None:
        """There would be no last token."""
        with pytest.raises(ValueError, match="must be >= 1"):
            ForcedLastToken(1, **limit)
