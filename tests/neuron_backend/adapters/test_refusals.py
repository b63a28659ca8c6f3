"""What a wrapped decoder cannot do is refused on its construction, or on that of a generator over it."""

from types import SimpleNamespace

import pytest
import torch
from transformers import PreTrainedModel

from decodekit.decoding.protocols import DecoderShape
from decodekit.neuron_backend import (
    CallableDecoder,
    NxDInferenceDecoder,
    OptimumNeuronDecoder,
    TransformersNeuronxDecoder,
)
from decodekit.speculation import PromptLookup, SpeculativeGenerator

from .nxd_stand_in import NxDModel
from .optimum_stand_in import OptimumModel
from .systems import SYSTEMS
from .tnx_stand_in import TnxModel


@pytest.fixture(scope="module")
def model(tiny_model) -> PreTrainedModel:
    return tiny_model("llama", torch.float64)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_device_sampling_config": object()}, "'on_device_sampling_config' must be None, or 'output_log"),
        ({"padding_side": "left"}, "'padding_side' must be 'right': got 'left'"),
        ({"async_mode": True}, "'async_mode' must be False: got True"),
        ({"output_logits": True}, "'output_logits' must be False without 'on_device_sampling_config'"),
        (
            {"enable_fused_speculation": True},
            "'enable_fused_speculation' must be False.*vLLM Neuron.*compile it with NxD Inference",
        ),
        ({"enable_eagle_speculation": True}, "'enable_eagle_speculation' must be False"),
        ({"is_medusa": True}, "'is_medusa' must be False"),
        ({"is_block_kv_layout": True}, "'is_block_kv_layout' must be False.*by blocks.*vLLM Neuron"),
        ({"is_prefix_caching": True}, "'is_prefix_caching' must be False"),
        ({"is_chunked_prefill": True}, "'is_chunked_prefill' must be False"),
        ({"flash_decoding_enabled": True}, "'flash_decoding_enabled' must be False.*last position"),
        ({"speculation_length": 16}, "'speculation_length' must not be the size of a context bucket: got 16"),
        ({"max_batch_size": 4}, "'max_batch_size' must be 3: got 4"),
        ({"kv_cache_batch_size": 8}, "'kv_cache_batch_size' must be 3: got 8"),
        ({"spec_batch_size": 1, "speculation_length": 5}, "'spec_batch_size' must be 3: got 1"),
        ({"ctx_batch_size": 2}, "'ctx_batch_size' must be 1 under continuous batching and 3 without: got 2"),
    ],
)
def test_nxd_settings(settings, message, model):
    """The setting, what it must be, and why."""
    with pytest.raises(ValueError, match=message):
        NxDInferenceDecoder(NxDModel(model, **settings))


def test_buckets_limit_what_a_row_and_a_prompt_may_be(model):
    """Whatever the configuration's other settings."""
    system = NxDModel(model, max_length=64, token_buckets=(16, 40), max_context_length=30)

    shape = NxDInferenceDecoder(system).shape

    assert (40, (1, 24)) == (shape.max_length, shape.widths)


def test_a_configuration_without_lengths(model):
    """No default is assumed."""
    system = NxDModel(model)
    system.neuron_config.max_length = system.neuron_config.seq_len = None
    with pytest.raises(ValueError, match="must have 'max_length' or 'seq_len', >= 1"):
        NxDInferenceDecoder(system)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"on_device_sampling": True},
            "'on_device_sampling' must be False, or 'output_logits' True: got a model that returns tokens",
        ),
        ({"padding_side": "left"}, "'padding_side' must be 'right'"),
        ({"max_batch_size": 4}, "'max_batch_size' must be 3: got 4"),
        ({"speculation_length": 24}, "'speculation_length' must not be the size of a context bucket: got 24"),
        ({"embedding_model": True}, "'embedding_model' must be False"),
    ],
)
def test_optimum_settings(settings, message, model):
    """The setting, what it must be, and why."""
    with pytest.raises(ValueError, match=message):
        OptimumNeuronDecoder(OptimumModel(model, **settings))


def test_tnx_settings(model):
    """Tokens instead of logits; rows, columns or a verification that it was not compiled for."""
    system = TnxModel(model, "1-D", speculation_length=4)
    with pytest.raises(ValueError, match=r"'batch_size' must be one of \[3\], which the model has: got 2"):
        TransformersNeuronxDecoder(system, batch_size=2)
    with pytest.raises(ValueError, match=r"'speculation_length' must be one of \[4\], .*: got 5"):
        TransformersNeuronxDecoder(system, speculation_length=5)
    with pytest.raises(ValueError, match="'speculation_length' must be None under continuous"):
        TransformersNeuronxDecoder(TnxModel(model, "continuous"), speculation_length=4)
    system.neuron_config.on_device_generation = object()
    with pytest.raises(ValueError, match="'on_device_generation' must be None"):
        TransformersNeuronxDecoder(system)


def test_tnx_of_earlier_versions(model):
    """The keys of its verification programs have no number of rows."""
    system = TnxModel(model, "1-D")
    system.decoder_lm_head_for_speculation = {3: None, 4: None}

    assert 4 == TransformersNeuronxDecoder(system).shape.scored_width
    assert 3 == TransformersNeuronxDecoder(system, speculation_length=3).shape.scored_width


def test_speculation_rows_of_a_model_without_speculation(model):
    """There is no program that they apply to."""
    NxDInferenceDecoder(NxDModel(model, spec_batch_size=1))


@pytest.mark.parametrize(("name", "least"), [("sliding_window", 49), ("attention_chunk_size", 48)])
def test_a_cache_that_may_be_a_ring(name, least, model):
    """
    A rewind cannot restore overwritten tokens. A ring as long as a row, or unused, is allowed.

    A sliding window is kept in a ring of one slot less.
    """
    system = NxDModel(model)
    for size in (16, least - 1):
        setattr(system.config, name, size)
        with pytest.raises(ValueError, match=f"'{name}' must be >= {least} .*: got {size} .*rewound"):
            NxDInferenceDecoder(system)
    setattr(system.config, name, least)
    NxDInferenceDecoder(system)
    system.config = SimpleNamespace(vocab_size=61, sliding_window=16, use_sliding_window=False)
    NxDInferenceDecoder(system)


SHAPE = DecoderShape(2, 32, 61, (1, 4, 16), 4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"function": 3}, TypeError, "'function' must be callable: got 3"),
        ({"prefill": 3}, TypeError, "'prefill' must be callable: got 3"),
        ({"reset": 3}, TypeError, "'reset' must be callable: got 3"),
        (
            {"dtype": torch.float32},
            TypeError,
            "'dtype' must be torch.int32 or torch.int64: got torch.float32",
        ),
        ({"shape": DecoderShape(2, 32, 61, (4, 16), 4)}, ValueError, "'shape' must have a width of 1"),
        (
            {"shape": DecoderShape(2, 32, 61, (1, 4), 4), "prefill": lambda ids, lengths: None},
            ValueError,
            "'shape' must have a width of 1 that 'function' takes, and score no wider ones",
        ),
    ],
)
def test_callables(options, error, message):
    """Arguments that are not callable, and shapes without a width for the callable."""
    given = {"function": lambda ids, positions: None, "shape": SHAPE} | options
    with pytest.raises(error, match=message):
        CallableDecoder(**given)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("nxd", r"Compile the model with speculation_length=5"),
        ("optimum", r"Export the model with speculation_length=5"),
        ("tnx row by row", r"Compile the model without continuous batching"),
        ("callable of one token", r"Compile the wrapped system with a program that scores 5"),
    ],
)
def test_speculation_over_one_that_cannot_verify(name, advice, model):
    """Refused when the generator is built, with the library's own setting."""
    decoder = SYSTEMS[name](model)

    assert 1 == decoder.shape.scored_width
    assert any("no speculation" in limit for limit in decoder.limits)
    with pytest.raises(ValueError, match=rf"'num_draft_tokens' must be at most 0.*got 4\. {advice}"):
        SpeculativeGenerator(decoder, PromptLookup(), num_draft_tokens=4)


def test_speculation_longer_than_compiled(model):
    """The program for 5 columns verifies 4 draft tokens."""
    decoder = SYSTEMS["tnx at one position"](model)
    with pytest.raises(ValueError, match=r"at most 4.*got 6. Call enable_speculative_decoder\(7\)"):
        SpeculativeGenerator(decoder, PromptLookup(), num_draft_tokens=6)


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("nxd that verifies", ("no program of one column: a single token takes a call of 5 columns",)),
        ("nxd that verifies before 2.22", ()),
        ("optimum that verifies", ()),
        (
            "nxd of one batch",
            (
                "no program of one column: a single token takes a call of 5 columns",
                "a prompt that joins a running batch encodes the other rows again",
            ),
        ),
        (
            "tnx at one position",
            (
                "one position at a time: rows at different positions take a call each",
                "a prompt that joins a running batch encodes the other rows again",
            ),
        ),
    ],
)
def test_limits_are_declared(name, limits, model):
    """As sentences, beside the shape."""
    assert limits == SYSTEMS[name](model).limits
