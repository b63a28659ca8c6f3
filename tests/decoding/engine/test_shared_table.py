"""Requests that share a decoder give what each gives alone."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.neuron_backend.static_decoder import StaticDecoder
from decodekit.speculation import DraftModel, PromptLookup
from decodekit.testing import ScriptedDecoder

from .requests import check_table

TABLE = 2 * torch.randn(97, 9, generator=torch.Generator().manual_seed(3))
NEAR = TABLE + 0.5 * torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(4))


def scripted(rows: int, table: Tensor = TABLE, **options: Any) -> ScriptedDecoder:
    """A decoder over *table*."""
    return ScriptedDecoder(table, batch_size=rows, max_length=48, **options)


@pytest.mark.mostly_slow(every=12)
@pytest.mark.parametrize("seed", range(120))
def test_scripted_requests(seed: int) -> None:
    """Ten requests of up to three rows: twelve kinds of chain, samplers with state, a shared draft model."""
    dice = random.Random(seed)
    rows = dice.randint(1, 5)
    drafters = [PromptLookup(), DraftModel(scripted(5, NEAR))]

    assert check_table(dice, scripted, drafters, rows, 10)


@pytest.mark.mostly_slow(every=15)
@pytest.mark.parametrize("seed", range(45))
def test_float64_requests(seed: int, tiny_model: Any) -> None:
    """Five requests over a model."""
    model, draft = tiny_model("llama", torch.float64), tiny_model("qwen2", torch.float64)

    def make(rows: int) -> StaticDecoder:
        return StaticDecoder(model, batch_size=rows, max_length=48, widths=(1, 5, 16), scored_width=5)

    dice = random.Random(seed)
    drafter = DraftModel(StaticDecoder(draft, batch_size=4, max_length=48, widths=(1, 5, 16), scored_width=5))

    assert check_table(dice, make, [PromptLookup(), drafter], dice.randint(1, 4), 5)
