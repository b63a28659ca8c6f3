"""What may be passed as prompts."""

from typing import Any

import numpy as np
import pytest
import torch

from decodekit.decoding import DecoderShape
from decodekit.decoding.prompts import as_rows

SHAPE = DecoderShape(batch_size=3, max_length=8, vocab_size=10, widths=(1, 4), scored_width=4)


def letters(text: str) -> dict[str, list[int]]:
    """A tokenizer: a to j."""
    return {"input_ids": [ord(letter) - ord("a") for letter in text]}


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([1, 2], [[1, 2]]),
        ((1, 2), [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (np.array([[1, 2], [3, 4]], dtype=np.int32), [[1, 2], [3, 4]]),
        (torch.tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (torch.tensor([1, 2], dtype=torch.uint8), [[1, 2]]),
        ([torch.tensor([1, 2]), np.array([3])], [[1, 2], [3]]),
        ([np.int64(1), 2], [[1, 2]]),
        ("ab", [[0, 1]]),
        (["ab", "c"], [[0, 1], [2]]),
    ],
)
def test_accepts(prompts: Any, expected: list[list[int]]) -> None:
    """Ids in lists, tuples and integer arrays, and strings where there is a tokenizer."""
    assert expected == as_rows(prompts, SHAPE, letters)


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        ([], ValueError, "'prompts' must be 1 to 3, the decoder's rows: got 0"),
        ([[1]] * 4, ValueError, "'prompts' must be 1 to 3, the decoder's rows: got 4"),
        ([[1], []], ValueError, "prompt 1 must have 1 to 8 tokens, the decoder's max_length: got 0"),
        ([[1] * 9], ValueError, "prompt 0 must have 1 to 8 tokens, the decoder's max_length: got 9"),
        ([1, 10], ValueError, "the ids of prompt 0 must be 0 to 9, the vocabulary: got 10"),
        ([[1], [-1]], ValueError, "the ids of prompt 1 must be 0 to 9, the vocabulary: got -1"),
        (torch.ones(1, 2), TypeError, "'prompts' must be an integer array: got float32"),
        (torch.ones(1, 2).bool(), TypeError, "'prompts' must be an integer array: got bool"),
        (
            np.ones((1, 1, 1), dtype=int),
            ValueError,
            r"the shape \[batch, length\] or \[length\]: got \[1, 1, 1\]",
        ),
        ([1.5], TypeError, "a prompt must be a list of ids: got 1.5"),
        ([True], TypeError, "a prompt must be a list of ids: got True"),
        ([[1, None]], TypeError, r"a prompt must be a list of ids: got \[1, None\]"),
        (
            7,
            TypeError,
            "'prompts' must be ids, lists of ids, an integer array, or what a tokenizer returns: got int",
        ),
        (
            None,
            TypeError,
            "'prompts' must be ids, lists of ids, an integer array, or what a tokenizer returns: got No",
        ),
    ],
)
def test_refuses(prompts: Any, error: type[Exception], message: str) -> None:
    """What, the rule, and the value."""
    with pytest.raises(error, match=message):
        as_rows(prompts, SHAPE, letters)


def test_strings_need_a_tokenizer() -> None:
    """Without one, a string is refused and quoted."""
    with pytest.raises(TypeError, match=r"has no tokenizer .*: got the string 'def'"):
        as_rows("def", SHAPE)
