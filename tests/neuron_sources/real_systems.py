"""Wrapped decoders over the libraries' own code, by name."""

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from decodekit.neuron_backend import (
    NxDInferenceDecoder,
    OptimumNeuronDecoder,
    TransformersNeuronxDecoder,
)
from decodekit.neuron_backend.adapters import WrappedDecoder

from ..neuron_backend.adapters.systems import BATCH, LENGTH
from .nxd_inference import real_model as nxd_inference
from .optimum_neuron import real_model as optimum_neuron
from .transformers_neuronx import real_model as transformers_neuronx

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
