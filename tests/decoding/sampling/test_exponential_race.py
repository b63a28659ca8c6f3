"""A draw among few tokens is that among all."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import History, Sample
from decodekit.decoding.sampling import noise
from decodekit.decoding.sampling.exponential_race import ExponentialRace
from decodekit.decoding.sampling.few_tokens import Cell, Few

VOCAB = 50
"""Seven blocks of eight, the last of them with two tokens."""


def drawn(scores: dict[int, float], stream: int, position: int) -> tuple[int | None, int]:
    """The draw among few, and that among all of the vocabulary."""
    whole = torch.full((1, 1, VOCAB), -torch.inf)
    for token, score in scores.items():
        whole[..., token] = score
    tokens = torch.zeros(1, 1, position, dtype=torch.int64)
    history = History(tokens, torch.tensor([[position]]), torch.tensor([1]), torch.tensor([stream]))
    ids = sorted(scores)
    few = Few(np.array(ids), np.array([scores[token] for token in ids], dtype=np.float32))
    cell = Cell(tokens[0, 0].numpy(), 1, stream, VOCAB)
    return ExponentialRace()(few, cell), int(Sample(seed=0)(whole, history))


@given(
    st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-30, 30, width=32), min_size=1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(1, 40),
)
def test_is_what_sample_draws(scores: dict[int, float], stream: int, position: int) -> None:
    """In one block or many, whatever the weights; where it is not clear there is none."""
    found, expected = drawn(scores, stream, position)

    assert found in (None, expected)


@pytest.mark.parametrize("tokens", [range(5), range(0, VOCAB, 8), range(VOCAB)], ids=["one", "each", "all"])
def test_is_seldom_unclear(tokens: range) -> None:
    """Tokens of one block, one of each, or all: of 300 draws a few are left to the long way."""
    scores = {token: float(token % 3) for token in tokens}
    pairs = [drawn(scores, stream, 1 + stream % 30) for stream in range(300)]

    assert sum(found is None for found, _ in pairs) < 6
    assert all(found in (None, expected) for found, expected in pairs)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_out_of_the_ordinary(odd: float) -> None:
    """Garbage, two ways to be certain, and nothing are left to the long way."""
    few = Few(np.array([3, 4]), np.array([odd, odd], dtype=np.float32))

    assert ExponentialRace()(few, Cell(np.zeros(3, dtype=np.int64), 1, 0, VOCAB)) is None


def test_what_weighs_nothing_is_not_drawn() -> None:
    """Nor warned of: a block without weight, and a token beside one that has all of its block's."""
    for stream in range(50):
        found, expected = drawn({0: 0.0, 1: -200.0, 20: -torch.inf, 30: -300.0}, stream, 2)

        assert found == expected == 0


def test_the_margin_is_wider_than_rounding() -> None:
    """Logits up to 40 below the largest, beyond which none wins: their weights are wrong by a tenth of it."""
    scores = np.random.default_rng(0).uniform(-40, 0, 100_000).astype(np.float32) + np.float32(11.3)
    best = scores.max()
    expected = np.exp(scores.astype(np.float64) - np.float64(best))

    assert 10 * np.abs(np.log(np.exp(scores - best) / expected)).max() < 1e-4


def test_a_close_race_is_left_to_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between blocks or in one: two that single precision might not tell apart, and two that it does."""
    monkeypatch.setattr(noise, "exponential", lambda *key: torch.ones(16, 7, dtype=torch.float64))
    cell = Cell(np.zeros(3, dtype=np.int64), 1, 0, VOCAB)
    for ids, numbers in (([3, 20], [1.0, 2.0]), ([3, 4], [1.0, 1.0])):
        of_tokens = np.array(numbers)
        monkeypatch.setattr(noise, "exponential_of_one", lambda *key, found=of_tokens: found)
        close, clear = ([0.0, gap] for gap in (1e-5, 1e-3))

        assert ExponentialRace()(Few(np.array(ids), np.array(close, dtype=np.float32)), cell) is None
        assert ExponentialRace()(Few(np.array(ids), np.array(clear, dtype=np.float32)), cell) == ids[1]
