"""Input of watermark detectors."""

from typing import Any

import numpy as np
import pytest
import torch

from decodekit.processors.watermark.detector_input import as_token_lists


class TestAsTokenLists:
    @pytest.mark.parametrize(
        ("texts", "expected"),
        [
            ([1, 2], [[1, 2]]),
            ((1, 2), [[1, 2]]),
            ([[1, 2], [3]], [[1, 2], [3]]),
            (torch.tensor([1, 2]), [[1, 2]]),
            (np.array([[1, 2]]), [[1, 2]]),
            ([torch.tensor([1, 2]), np.array([3])], [[1, 2], [3]]),
        ],
    )
    def test_takes(self, texts: Any, expected: list[list[int]]) -> None:
        """One text or several, lists or arrays."""
        assert expected == as_token_lists(texts, None, 1)

    def test_cuts(self) -> None:
        """At the length, and before the end of the sequence."""
        assert [[1, 2], [3]] == as_token_lists([[1, 2, -1], [3, 9, 4]], [2, 3], 1, eos=(8, 9))

    @pytest.mark.parametrize(
        ("texts", "lengths", "error", "message"),
        [
            ([], None, ValueError, "'texts' must be at least one: got none"),
            (["ab"], None, TypeError, "text 0 must be a list of token ids: got 'ab'"),
            ([[1.5]], None, TypeError, r"text 0 must be a list of token ids: got \[1.5\]"),
            ([[1, 2], [-1, 2]], None, ValueError, "the ids of text 1 must be >= 0: got -1"),
            ([[1, 2]], [2, 2], ValueError, "'lengths' must be one for each of the 1 texts: got 2"),
            ([[1, 2]], [3], ValueError, "the length of text 0 must be 0 to 2, what it has: got 3"),
            ([[1, 2], [1]], None, ValueError, "text 1 must have at least 2 tokens to look at: got 1"),
            ([[9, 1, 2]], None, ValueError, "text 0 must have at least 2 tokens to look at: got 0"),
        ],
    )
    def test_refuses(self, texts: Any, lengths: Any, error: type[Exception], message: str) -> None:
        """The message names the text."""
        with pytest.raises(error, match=message):
            as_token_lists(texts, lengths, 2, eos=(9,))
