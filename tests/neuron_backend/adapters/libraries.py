"""
The libraries whose models are wrapped, each with its own calls: compile a model, and load what it saved.

Sources: neuronx-distributed-inference, test/integration (``compile`` and ``load`` of a
``NeuronLlamaForCausalLM``); optimum-neuron 0.4, tests/decoder (``NxDNeuronConfig``, ``export``);
transformers-neuronx, base.py and the developer guide. Of transformers-neuronx there is no release for
the torch that decodekit needs: its tests are for those who have built one.
"""

from pathlib import Path
from typing import Any, Protocol

import torch

from decodekit.neuron_backend import (
    NxDInferenceDecoder,
    OptimumNeuronDecoder,
    TransformersNeuronxDecoder,
)
from decodekit.neuron_backend.adapters import WrappedDecoder

from ..on_device import require_module

BATCH, LENGTH, CONTEXT, VERIFIED = 2, 128, 64, 5
"""Rows, positions, those of a prompt that is encoded at once, and columns of a verification."""


class Library(Protocol):
    """One of them."""

    def compile(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """Compile the Llama that lies in *checkpoint*, save what came of it in *folder*, and wrap it."""
        ...

    def load(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """Wrap what :meth:`compile` has saved, without compiling it again."""
        ...


class NxDInference:
    """neuronx-distributed-inference."""

    package = "neuronx-distributed-inference"

    def compile(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """With continuous batching, and a program that verifies."""
        configs = require_module("neuronx_distributed_inference.models.config", self.package)
        adapter = require_module("neuronx_distributed_inference.utils.hf_adapter", self.package)
        llama = self._llama()
        settings = configs.NeuronConfig(
            tp_degree=1,
            batch_size=BATCH,
            ctx_batch_size=1,
            max_context_length=CONTEXT,
            seq_len=LENGTH,
            is_continuous_batching=True,
            speculation_length=VERIFIED,
            torch_dtype=torch.float32,
        )
        config = llama.LlamaInferenceConfig(
            settings, load_config=adapter.load_pretrained_config(str(checkpoint))
        )
        model = llama.NeuronLlamaForCausalLM(str(checkpoint), config)
        model.compile(_with_slash(folder))
        model.load(_with_slash(folder))
        return NxDInferenceDecoder(model)

    def load(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """The configuration lies with the programs."""
        model = self._llama().NeuronLlamaForCausalLM(_with_slash(folder))
        model.load(_with_slash(folder))
        return NxDInferenceDecoder(model)

    def _llama(self) -> Any:
        return require_module("neuronx_distributed_inference.models.llama.modeling_llama", self.package)


class OptimumNeuron:
    """optimum-neuron."""

    package = "optimum-neuron"

    def compile(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """With continuous batching, and a program that verifies."""
        configs = require_module("optimum.neuron.models.inference.backend.config", self.package)
        instance = require_module("optimum.neuron.utils.instance", self.package)
        settings = configs.NxDNeuronConfig(
            checkpoint_id=str(checkpoint),
            batch_size=BATCH,
            sequence_length=LENGTH,
            max_context_length=CONTEXT,
            continuous_batching=True,
            speculation_length=VERIFIED,
            on_device_sampling=False,
            tp_degree=1,
            torch_dtype=torch.float32,
            target=instance.current_instance_type(),
        )
        model = self._models().export(str(checkpoint), neuron_config=settings, load_weights=True)
        model.save_pretrained(str(folder))
        return OptimumNeuronDecoder(model)

    def load(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """Its folder has everything."""
        return OptimumNeuronDecoder(self._models().from_pretrained(str(folder)))

    def _models(self) -> Any:
        return require_module("optimum.neuron", self.package).NeuronModelForCausalLM


class TransformersNeuronx:
    """transformers-neuronx."""

    package = "transformers-neuronx"

    def compile(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """With a position for each row, and a program that verifies."""
        model = self._model(checkpoint)
        model.to_neuron()
        model.save(str(folder))
        return TransformersNeuronxDecoder(model)

    def load(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """It saves programs alone: the weights are those of *checkpoint*."""
        model = self._model(checkpoint)
        model.load(str(folder))
        model.to_neuron()
        return TransformersNeuronxDecoder(model)

    def _model(self, checkpoint: Path) -> Any:
        configs = require_module("transformers_neuronx.config", self.package)
        llama = require_module("transformers_neuronx.llama.model", self.package)
        model = llama.LlamaForSampling.from_pretrained(
            str(checkpoint),
            batch_size=BATCH,
            n_positions=LENGTH,
            context_length_estimate=CONTEXT,
            amp="f32",
            tp_degree=1,
            neuron_config=configs.NeuronConfig(padding_side="right"),
        )
        model.enable_speculative_decoder(VERIFIED)
        return model


LIBRARIES: dict[str, Library] = {
    "nxd-inference": NxDInference(),
    "optimum-neuron": OptimumNeuron(),
    "transformers-neuronx": TransformersNeuronx(),
}
"""All of them, by name."""


def _with_slash(folder: Path) -> str:
    # Releases before 0.3 put a file name behind it as it is.
    return f"{folder}/"
