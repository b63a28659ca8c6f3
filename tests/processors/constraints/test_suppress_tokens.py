"""Suppressed tokens."""

from typing import Any

import pytest
import torch

from decodekit.processors import SuppressTokens

from ..by_hand import kept, run

EQUAL = [0.25, 0.25, 0.25, 0.25]


class TestSuppressTokens:
    @pytest.mark.parametrize("ids", [[3, 1], (1, 3, 3), {1, 3}, torch.tensor([1, 3])])
    def test_forbids_the_tokens(self, ids: Any) -> None:
        """Order, repetition and container do not matter."""
        suppress = SuppressTokens(ids)

        assert [0, 2] == kept(suppress, EQUAL)
        assert "SuppressTokens(ids=(1, 3))" == repr(suppress)

    def test_takes_one_id_alone(self) -> None:
        """As tokenizers give it."""
        assert [0, 1, 3] == kept(SuppressTokens(2), EQUAL)

    def test_refuses_negative_ids(self) -> None:
        """Token -1 is padding, not the last token."""
        with pytest.raises(ValueError, match="token ids must be >= 0: got -1"):
            SuppressTokens([2, -1])

    def test_refuses_ids_beyond_the_vocabulary(self) -> None:
        """Known only when the logits come."""
        with pytest.raises(ValueError, match="token ids must be < 4, the size of the vocabulary: got 7"):
            run(SuppressTokens([7, 1]), [0.0] * 4)

    @pytest.mark.parametrize("ids", [None, "12", [1.0], [True], True, [None]])
    def test_refuses_what_is_no_id(self, ids: Any) -> None:
        """A tokenizer without the token gives None, and that is said."""
        with pytest.raises(TypeError, match="token ids must be integers: got "):
            SuppressTokens(ids)
