"""How logits are combined."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import Contrast, MeanLogProbs, MeanProbs

HALF, SURE = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.9, 0.05, 0.05])
EVERY = (MeanLogProbs(), MeanProbs(), MeanLogProbs([1, 3]), MeanProbs((0.5, 2)), Contrast(0.3, 0.7))


def test_the_means_in_the_head() -> None:
    """Of two distributions, with equal weights and with one three times the other."""
    logits = [HALF.log() + 2, SURE.log() - 1]

    assert torch.allclose((HALF + SURE) / 2, MeanProbs()(logits).exp())
    assert torch.allclose((HALF + 3 * SURE) / 4, MeanProbs([1, 3])(logits).exp())
    product = (HALF * SURE).sqrt()
    assert torch.allclose(product / product.sum(), MeanLogProbs()(logits).softmax(-1))
    product = HALF**0.75 * SURE**0.25
    assert torch.allclose(product / product.sum(), MeanLogProbs([6, 2])(logits).softmax(-1))


def test_only_the_ratios_of_weights_count() -> None:
    """However large they are; a share that would be 0 is refused."""
    logits = [HALF.log(), SURE.log()]
    for kind in (MeanLogProbs, MeanProbs):
        assert torch.equal(kind()(logits), kind([1e308, 1e308])(logits))
        with pytest.raises(ValueError, match="'weights' must not differ so much"):
            kind([1e-320, 1e10])(logits)


def test_a_token_needs_all_experts_or_one() -> None:
    """One that a decoder forbids is out of the product, and in the mixture; without NaN."""
    logits = [torch.tensor([0.0, -torch.inf, -torch.inf]), torch.tensor([0.0, 0.0, -torch.inf])]

    assert [False, True, True] == (MeanLogProbs()(logits) == -torch.inf).tolist()
    assert [0.75, 0.25, 0.0] == pytest.approx(MeanProbs()(logits).exp().tolist())
    for alpha in (0.0, 0.1):
        assert [False, True, True] == (Contrast(alpha)(logits) == -torch.inf).tolist()


def test_contrast_by_hand() -> None:
    """The amateur's temperature flattens it; what the expert finds implausible is out."""
    expert, amateur = torch.tensor([0.6, 0.39, 0.01]), torch.tensor([0.64, 0.32, 0.04])
    flat = amateur.sqrt() / amateur.sqrt().sum()
    ratio = (expert / flat).log()
    logits = [expert.log() + 5, amateur.log() - 5]

    assert torch.allclose(ratio[:2], Contrast(0.1, 2.0)(logits)[:2], atol=1e-6)
    assert -torch.inf == Contrast(0.1, 2.0)(logits)[2]
    assert torch.allclose(ratio, Contrast(0.0, 2.0)(logits), atol=1e-6)
    assert [True, False, False] == Contrast(1.0)(logits).isfinite().tolist()


def test_numbers_that_are_none_stay() -> None:
    """An overflow in one decoder shows in the row, so that a generation can end it."""
    logits = [torch.tensor([0.0, torch.nan]), torch.tensor([0.0, 1.0])]
    for combine in EVERY:
        assert combine(logits).isnan().all()


@given(st.integers(0, 999), st.integers(1, 4), st.integers(1, 6), st.integers(2, 200))
def test_a_column_is_the_same_bits_alone(seed: int, rows: int, columns: int, vocab: int) -> None:
    """Whatever is beside it, and wherever it lies in memory."""
    random = torch.Generator().manual_seed(seed)
    logits = [4 * torch.randn(rows, columns + 2, vocab, generator=random)[:, 1:-1] for _ in range(2)]
    for combine in EVERY:
        every = combine(logits)
        for row in range(rows):
            for column in range(columns):
                alone = combine([one[row : row + 1, column : column + 1].clone() for one in logits])

                assert torch.equal(alone[0, 0], every[row, column])
        assert combine.by_column


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MeanProbs([1, 0]), ValueError, "'weights' must be > 0 and finite"),
        (lambda: MeanProbs([]), ValueError, "'weights' must be > 0"),
        (lambda: MeanLogProbs([1, math.inf]), ValueError, "'weights' must be > 0 and finite"),
        (lambda: MeanLogProbs("ab"), TypeError, "'weights' must be numbers"),
        (lambda: MeanLogProbs(2), TypeError, "'weights' must be numbers"),
        (lambda: MeanLogProbs([1])([HALF, SURE]), ValueError, "one for each of 2 decoders: got"),
        (lambda: Contrast(1.5), ValueError, "'alpha' must be >= 0 and <= 1: got 1.5"),
        (lambda: Contrast(0.1, 0.0), ValueError, "'temperature' must be > 0 and finite"),
        (lambda: Contrast()([HALF] * 3), ValueError, "an expert and an amateur: got 3"),
    ],
)
def test_bad_parameters_are_refused(make: Any, error: type[Exception], message: str) -> None:
    """With the rule and the value."""
    with pytest.raises(error, match=message):
        make()
