"""The probability threshold."""

from typing import Any

import pytest
import torch

from decodekit.decoding import Finish, Generator, History, LowConfidence, MaxNewTokens
from decodekit.decoding.scores import Scores
from decodekit.processors import TopK
from decodekit.testing import ScriptedDecoder, last_token

PROBABILITIES = torch.tensor([0.5, 0.25, 0.125, 0.125])


def codes(p: float, chosen: list[int]) -> list[int]:
    """Of tokens that were chosen from ``PROBABILITIES``."""
    ids = torch.tensor([[[9, *chosen]]])
    length = torch.arange(2, len(chosen) + 2)[None]
    logits = PROBABILITIES.log().expand(1, len(chosen), -1)
    row = History(ids, length, torch.tensor([1]), torch.tensor([0]))
    return LowConfidence(p)(Scores(lambda: logits), row)[0].tolist()


def test_compares_the_probability_of_the_chosen_token() -> None:
    """Below, not at it."""
    assert [0, 0, 1, 1] == codes(0.2, [0, 1, 2, 3])
    assert [0, 0, 0, 0] == codes(0.125, [0, 1, 2, 3])
    assert [1, 1, 1, 1] == codes(1, [0, 1, 2, 3])


def test_looks_at_the_processed_distribution() -> None:
    """Where one token is left, its probability is 1."""
    # From token 1 on the next one is less and less certain.
    table = torch.eye(6).roll(1, dims=1) * torch.tensor([9.0, 4.0, 2.0, 1.0, 0.5, 9.0])[:, None]
    decoder, stop = ScriptedDecoder(table, line=last_token), LowConfidence(0.5) | MaxNewTokens(9)
    result = Generator(decoder, stop=stop)([0])

    # 1 / (1 + 5 e^-2) is .596, 1 / (1 + 5 e^-1) is .352.
    assert [[1, 2, 3, 4]] == result.ids
    assert [Finish("low_confidence")] == result.finishes
    assert 9 == len(Generator(decoder, stop=stop, processors=TopK(1))([0]).ids[0])


@pytest.mark.parametrize(
    ("p", "error"), [(0, ValueError), (1.1, ValueError), ("a", TypeError), (True, TypeError)]
)
def test_must_be_a_probability(p: Any, error: type[Exception]) -> None:
    """Nothing is less likely than 0."""
    with pytest.raises(error, match="'p' must be"):
        LowConfidence(p)
