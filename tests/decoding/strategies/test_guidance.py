"""The equation of guidance."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding.strategies.guidance import guide


def logits(seed: int, *shape: int) -> Tensor:
    """Random ones."""
    return 4 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_one_is_the_distribution_after_the_prompt_and_zero_the_other() -> None:
    """The neutral scale to the last bit."""
    towards, away = logits(0, 2, 3, 7), logits(1, 2, 3, 7)

    assert torch.equal(towards.log_softmax(-1), guide(towards, away, 1.0))
    assert torch.equal(away.log_softmax(-1), guide(towards, away, 0.0))


@pytest.mark.parametrize("scale", [-0.5, 0.0, 1.0, 1.5, 3.0])
def test_equals_transformers(scale: float) -> None:
    """Its processor of the same logits."""
    from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

    towards, away = logits(2, 3, 11), logits(3, 3, 11)
    theirs = UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, None)
    theirs.get_unconditional_logits = lambda ids: away[:, None]  # type: ignore[method-assign]

    assert torch.equal(theirs(None, towards), guide(towards, away, scale))


@given(st.integers(0, 999), st.integers(1, 5), st.integers(1, 9), st.integers(2, 200))
def test_a_column_is_the_same_bits_alone(seed: int, rows: int, columns: int, vocab: int) -> None:
    """Whatever is beside it, and wherever it lies in memory."""
    towards = logits(seed, rows, columns + 2, vocab)[:, 1:-1]
    away = logits(seed + 1, rows, columns, vocab)
    both = guide(towards, away, 1.7)
    for row in range(rows):
        for column in range(columns):
            one = guide(towards[row, column].clone(), away[row, column].clone(), 1.7)

            assert torch.equal(one, both[row, column])


def test_a_token_that_either_side_forbids_stays_forbidden() -> None:
    """And no NaN comes of it; a NaN stays."""
    towards = torch.tensor([[0.0, -torch.inf, 1.0], [0.0, 1.0, 2.0]])
    away = torch.tensor([[0.0, -torch.inf, -torch.inf], [torch.nan, 1.0, 2.0]])
    found = guide(towards, away, 2.0)

    assert [False, True, True] == (found[0] == -torch.inf).tolist()
    assert found[0, 0].isfinite()
    assert found[1].isnan().all()
