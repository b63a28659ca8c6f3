"""Entropy thresholds."""

import math
from typing import Any

import pytest
import torch

from decodekit.decoding import Finish, Generator, HighEntropy, LowEntropy, MaxNewTokens
from decodekit.decoding.stopping.entropy import entropy
from decodekit.testing import ScriptedDecoder, last_token

# The entropy grows from line to line: all but certain, among two, three, four and five tokens.
TABLE = torch.full((6, 6), -torch.inf)
for line in range(5):
    TABLE[line, 1 : line + 2] = 0.0
    TABLE[line, line + 1] = 1e-3
TABLE[5, 0] = 0.0


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [([1.0, 0.0], 0.0), ([0.5, 0.5], math.log(2)), ([0.5, 0.25, 0.25, 0.0], 1.5 * math.log(2))],
)
def test_is_the_entropy_in_nats(probabilities: list[float], expected: float) -> None:
    """A forbidden token adds nothing."""
    logits = torch.tensor(probabilities).log()

    assert float(entropy(logits[None, None])) == pytest.approx(expected, abs=1e-6)


def test_a_column_alone_has_the_same() -> None:
    """To the last bit, in a vocabulary that torch would split among threads."""
    logits = torch.randn(2, 3, 100_003, generator=torch.Generator().manual_seed(0))
    alone = [[float(entropy(logits[b : b + 1, i : i + 1])) for i in range(3)] for b in range(2)]

    assert alone == entropy(logits).tolist()


def test_nothing_left_is_not_a_number() -> None:
    """So neither condition holds."""
    assert math.isnan(float(entropy(torch.full((1, 1, 4), -torch.inf))))


@pytest.mark.parametrize(
    ("stop", "count", "reason"),
    [
        (HighEntropy(1.2), 4, "high_entropy"),  # above log 3, below log 4
        (HighEntropy(0.0), 2, "high_entropy"),
        (HighEntropy(2.0), 9, "max_new_tokens"),
        (LowEntropy(0.5), 1, "low_entropy"),
    ],
)
def test_ends_with_the_token_chosen_there(stop: Any, count: int, reason: str) -> None:
    """The first that was chosen from such a distribution is the row's last."""
    result = Generator(ScriptedDecoder(TABLE, line=last_token), stop=stop | MaxNewTokens(9))([0])

    assert count == len(result.ids[0])
    assert [Finish(reason)] == result.finishes


@pytest.mark.parametrize("kind", [HighEntropy, LowEntropy])
@pytest.mark.parametrize(("nats", "error"), [(-0.1, ValueError), (math.nan, ValueError), ("1", TypeError)])
def test_must_be_an_entropy(kind: Any, nats: Any, error: type[Exception]) -> None:
    """There is none below 0."""
    with pytest.raises(error, match="'nats' must be"):
        kind(nats)


def test_nothing_is_below_no_entropy() -> None:
    """A condition that never holds is a mistake."""
    with pytest.raises(ValueError, match="'nats' must be > 0"):
        LowEntropy(0)
