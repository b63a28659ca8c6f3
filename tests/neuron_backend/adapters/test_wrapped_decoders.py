"""Every wrapped decoder keeps the decoder contract, whatever its system does in a call."""

import pytest
import torch
from hypothesis import given, settings
from transformers import PreTrainedModel

from decodekit.decoding import Generator, Greedy, MaxNewTokens, Sample
from decodekit.neuron_backend import StaticDecoder
from decodekit.speculation import DraftModel, SpeculativeGenerator
from decodekit.testing import check_decoder

from ...strategies import examples
from .systems import BATCH, LENGTH, SYSTEMS, VERIFYING, Reference
from .wrapped_checks import (
    FORWARDS,
    PROMPTS,
    RAGGED,
    check_forwards,
    check_joining,
    check_speculation,
    check_text,
)


@pytest.fixture(scope="module")
def model(tiny_model) -> PreTrainedModel:
    return tiny_model("llama", torch.float64)


@pytest.fixture(scope="module")
def reference(model: PreTrainedModel) -> Reference:
    return Reference(model)


@pytest.fixture(scope="module")
def own(model: PreTrainedModel) -> StaticDecoder:
    """The same model in a StaticDecoder."""
    return StaticDecoder(model, batch_size=BATCH, max_length=LENGTH, widths=(1, 5, 16))


@pytest.mark.mostly_slow(every=3)
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_contract_is_kept(name: str, model: PreTrainedModel):
    """Every width, ragged rows, padding, stale slots, the last position, and refusals."""
    check_decoder(SYSTEMS[name](model))


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", SYSTEMS)
def test_torch_s_default_dtype_changes_nothing(name: str, default: torch.dtype, model: PreTrainedModel):
    """Logits are float32, and those of before."""
    first, decoder = SYSTEMS[name](model), SYSTEMS[name](model)
    ids = torch.full((BATCH, decoder.shape.widths[-1]), 5)
    start, before = torch.zeros(BATCH, dtype=torch.int64), torch.get_default_dtype()
    expected = first.forward(ids, start)
    torch.set_default_dtype(default)
    try:
        found = decoder.forward(ids, start)
    finally:
        torch.set_default_dtype(before)

    assert found.dtype == torch.float32
    assert torch.equal(expected, found)


@pytest.mark.mostly_slow(every=5)
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("prompts", PROMPTS)
def test_texts_are_those_of_a_static_decoder(name, sampler, prompts, model, own):
    """Ragged prompts, of one token, longer than the context encoding, or fewer than the rows."""
    check_text(SYSTEMS[name](model), own, PROMPTS[prompts], sampler)


@pytest.mark.mostly_slow(every=3)
@pytest.mark.parametrize("name", VERIFYING)
@pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=5)], ids=["greedy", "sampled"])
def test_speculation_changes_nothing(name, sampler, model, own):
    """With a draft that is often wrong, and with one that is often right, the text is plain decoding's."""
    draft = StaticDecoder(model, batch_size=BATCH, max_length=LENGTH, widths=(1, 2, 16))

    check_speculation(SYSTEMS[name](model), own, draft, sampler)


@pytest.mark.parametrize("name", VERIFYING[:2])
def test_it_drafts_as_well(name, model, own):
    """A wrapped decoder as a DraftModel."""
    parts = {"stop": MaxNewTokens(20)}

    result = SpeculativeGenerator(own, DraftModel(SYSTEMS[name](model)), num_draft_tokens=4, **parts)(RAGGED)

    assert Generator(own, **parts)(RAGGED).ids == result.ids


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_prompt_joins_a_running_batch(name, model, reference):
    """Rows that start, lag, and restart beside others score as they do alone."""
    check_joining(SYSTEMS[name](model), reference)


@pytest.mark.parametrize("name", SYSTEMS)
@settings(max_examples=examples(25))
@given(forwards=FORWARDS)
def test_any_order_of_forwards_scores_as_the_stock_model(name, model, reference, forwards):
    """Rows start, continue, rewind and idle independently; every column scores as its prefix does."""
    check_forwards(SYSTEMS[name](model), reference, forwards)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("wide", [False, True], ids=["a token", "a prompt"])
def test_feeding_the_same_tokens_again_keeps_those_after_them(name, wide, model, reference):
    """A first token that is fed again must not lose the tokens that its bucket overwrites."""
    decoder = SYSTEMS[name](model)
    text = RAGGED[2]
    for position, token in enumerate(text):
        decoder.forward(torch.tensor([[token], [token], [-1]]), torch.tensor([position, position, 0]))

    first = decoder.forward(torch.tensor([[text[0]], [-1], [9]]), torch.tensor([0, 0, 0]))[:, 0].clone()
    width = decoder.shape.widths[-1 if wide else 0]
    ids = torch.full((BATCH, width), -1)
    ids[:2, -1] = 3
    last = decoder.forward(ids, torch.full((BATCH,), len(text) + 1 - width))[:, -1]

    torch.testing.assert_close(first[0], reference.after((text[0],)), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(first[2], reference.after((9,)), atol=1e-5, rtol=1e-5)
    for row in range(2):
        torch.testing.assert_close(last[row], reference.after((*text, 3)), atol=1e-5, rtol=1e-5)
