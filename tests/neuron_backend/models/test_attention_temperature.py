"""Queries that Llama 4 scales by position, in contexts longer than the comparison of a new decoder."""

import copy
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from decodekit.neuron_backend import StaticDecoder, UnsupportedArchitecture
from decodekit.neuron_backend.adapters.static_cache_decoder import StaticCacheDecoder

SCALED_FROM = 40


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """A model of one layer with RoPE and one without, whose queries are scaled from position 39 on."""
    config = transformers.Llama4TextConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        intermediate_size_mlp=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.3,
        no_rope_layers=[1, 0],
        moe_layers=[],
        floor_scale=SCALED_FROM,
        attn_scale=4.0,
        attention_chunk_size=128,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found: PreTrainedModel = transformers.Llama4ForCausalLM(config).double().eval()
    return found


@pytest.mark.parametrize("width", [1, 4])
def test_rows_are_scaled_by_their_own_positions(width: int, model: PreTrainedModel) -> None:
    """Of two rows, one is 44 positions ahead: each scores as the stock model alone, without a cache."""
    decoder = StaticDecoder(model, batch_size=2, max_length=120, widths=(1, 4))
    ids = torch.randint(0, 61, (2, 120), generator=torch.Generator().manual_seed(1))
    ahead = 44
    found = []
    for first in range(-ahead, 120 - ahead, width):
        newest = torch.full((2, width), -1)
        newest[0] = ids[0, first + ahead : first + ahead + width]
        if first >= 0:
            newest[1] = ids[1, first : first + width]
        found.append(decoder.forward(newest, torch.tensor([first + ahead, max(first, 0)])).double())
    logits = torch.cat(found, dim=1)
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits

    torch.testing.assert_close(expected[0], logits[0], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(expected[1, : 120 - ahead], logits[1, ahead:], atol=2e-5, rtol=2e-5)


def test_a_static_cache_is_refused_where_queries_are_scaled(model: PreTrainedModel) -> None:
    """Its layers know no position of a row; up to there, nothing is scaled."""
    shape: dict[str, Any] = {"widths": (1, 4), "device": "cpu", "compile": None}

    assert StaticCacheDecoder(copy.deepcopy(model), max_length=SCALED_FROM - 1, **shape)
    with pytest.raises(UnsupportedArchitecture, match="'max_length' must be < 40: got 40"):
        StaticCacheDecoder(copy.deepcopy(model), max_length=SCALED_FROM, **shape)
