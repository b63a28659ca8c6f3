"""Wrapped decoders over the libraries' own code: the text is plain decoding's, whatever is fed in a call."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from transformers import PreTrainedModel

from decodekit.decoding import Greedy, Sample
from decodekit.neuron_backend import (
    NxDInferenceDecoder,
    OptimumNeuronDecoder,
    StaticDecoder,
    TransformersNeuronxDecoder,
)
from decodekit.neuron_backend.adapters import WrappedDecoder
from decodekit.testing import check_decoder

from ..neuron_backend.adapters.systems import BATCH, LENGTH, Reference
from ..neuron_backend.adapters.wrapped_checks import (
    FORWARDS,
    PROMPTS,
    check_forwards,
    check_joining,
    check_speculation,
    check_text,
)
from ..strategies import examples
from .nxd_inference import real_model as nxd_inference
from .optimum_neuron import real_model as optimum_neuron
from .transformers_neuronx import real_model as transformers_neuronx

pytestmark = pytest.mark.neuron_sources

CONTEXT = 24


def nxd(**settings: Any) -> Callable[[PreTrainedModel], WrappedDecoder]:
    """A model of NxD Inference: continuous batching and buckets, unless *settings* say otherwise."""
    usual = {
        "batch_size": BATCH,
        "ctx_batch_size": 1,
        "is_continuous_batching": True,
        "seq_len": LENGTH,
        "max_context_length": CONTEXT,
        "enable_bucketing": True,
        "context_encoding_buckets": [8, 16, CONTEXT],
        "token_generation_buckets": [16, 32, LENGTH],
    }
    return lambda model: NxDInferenceDecoder(nxd_inference.real_model(model, **usual | settings))


def optimum(**settings: Any) -> Callable[[PreTrainedModel], WrappedDecoder]:
    """A model of optimum-neuron, with continuous batching unless *settings* say otherwise."""
    usual = {
        "batch_size": BATCH,
        "continuous_batching": True,
        "sequence_length": LENGTH,
        "max_context_length": CONTEXT,
    }
    return lambda model: OptimumNeuronDecoder(optimum_neuron.real_model(model, **usual | settings))


def tnx(**settings: Any) -> Callable[[PreTrainedModel], WrappedDecoder]:
    """A model of transformers-neuronx."""
    usual = {"rows": BATCH, "positions": LENGTH, "context": [8, CONTEXT]}
    return lambda model: TransformersNeuronxDecoder(
        transformers_neuronx.real_model(model, **usual | settings)
    )


ONE_BATCH = {"is_continuous_batching": False, "ctx_batch_size": BATCH}

SYSTEMS: dict[str, Callable[[PreTrainedModel], WrappedDecoder]] = {
    "nxd": nxd(),
    "nxd that verifies": nxd(speculation_length=5),
    "nxd that verifies one column": nxd(speculation_length=1),
    "nxd that samples": nxd(samples=True),
    "nxd that samples and verifies": nxd(samples=True, speculation_length=4),
    "nxd of one batch": nxd(**ONE_BATCH, speculation_length=5),
    "nxd of one batch that samples": nxd(**ONE_BATCH, samples=True),
    "nxd of one bucket": nxd(enable_bucketing=False, speculation_length=3),
    "optimum": optimum(),
    "optimum that verifies": optimum(speculation_length=5),
    "optimum that samples": optimum(on_device_sampling=True, output_logits=True),
    "optimum of two outputs that verifies": optimum(output_logits=True, speculation_length=3),
    "optimum of one batch that verifies": optimum(continuous_batching=False, speculation_length=5),
    "optimum in chunks": optimum(prefill_chunk_size=7),
    "optimum in chunks of one batch": optimum(prefill_chunk_size=7, continuous_batching=False),
    "optimum in chunks that samples": optimum(
        prefill_chunk_size=7, on_device_sampling=True, output_logits=True
    ),
    "tnx at one position that verifies": tnx(speculation_length=5),
    "tnx at many positions that verifies": tnx(padding_side="right", speculation_length=5),
    "tnx without prefill that verifies": tnx(padding_side="right", speculation_length=3, context=[]),
    "tnx row by row": tnx(by_row=True),
}
"""By name, over a float64 model: rows 3, positions 48."""

VERIFYING = [name for name in SYSTEMS if "verif" in name and "one column" not in name]


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Iterator[None]:
    """The libraries read the kind of device from the environment, and write to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
        yield


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    """A Llama whose text varies."""
    return tiny_model("llama", torch.float64)


@pytest.fixture(scope="module")
def reference(model: PreTrainedModel) -> Reference:
    """The stock model."""
    return Reference(model)


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
