"""Wrapped decoders over the libraries' own code: the text is plain decoding's, whatever is fed in a call."""

import pytest
from hypothesis import given, settings
from transformers import PreTrainedModel

from decodekit.decoding import Greedy, Sample
from decodekit.neuron_backend import StaticDecoder
from decodekit.testing import check_decoder

from ..neuron_backend.adapters.systems import BATCH, LENGTH
from ..neuron_backend.adapters.wrapped_checks import (
    FORWARDS,
    PROMPTS,
    check_forwards,
    check_joining,
    check_speculation,
    check_text,
)
from ..strategies import examples
from .real_systems import SYSTEMS, VERIFYING

pytestmark = pytest.mark.neuron_sources


@pytest.fixture(scope="module")
def own(model: PreTrainedModel) -> StaticDecoder:
    """The same model in a StaticDecoder."""
    return StaticDecoder(model, batch_size=BATCH, max_length=LENGTH, widths=(1, 5, 16))


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_contract_is_kept(name: str, model: PreTrainedModel) -> None:
    """Every width, ragged rows, padding, stale slots, the last position, and refusals."""
    check_decoder(SYSTEMS[name](model))


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("prompts", PROMPTS)
def test_texts_are_those_of_a_static_decoder(name, sampler, prompts, model, own) -> None:
    """Ragged prompts, of one token, longer than the context encoding, or fewer than the rows."""
    check_text(SYSTEMS[name](model), own, PROMPTS[prompts], sampler)


@pytest.mark.parametrize("name", VERIFYING)
@pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=5)], ids=["greedy", "sampled"])
def test_speculation_changes_nothing(name, sampler, model, own) -> None:
    """With a draft that is often wrong, and with one that is often right, the text is plain decoding's."""
    draft = StaticDecoder(model, batch_size=BATCH, max_length=LENGTH, widths=(1, 2, 16))

    check_speculation(SYSTEMS[name](model), own, draft, sampler)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_prompt_joins_a_running_batch(name, model, reference) -> None:
    """Rows that start, lag, and restart beside others score as they do alone."""
    check_joining(SYSTEMS[name](model), reference)


@pytest.mark.parametrize("name", SYSTEMS)
@settings(max_examples=examples(25))
@given(forwards=FORWARDS)
def test_any_order_of_forwards_scores_as_the_stock_model(name, model, reference, forwards) -> None:
    """Rows start, continue, rewind and idle independently; every column scores as its prefix does."""
    check_forwards(SYSTEMS[name](model), reference, forwards)
