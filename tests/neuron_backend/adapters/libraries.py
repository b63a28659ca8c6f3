"""
The wrapped libraries' own calls to compile a model and to load a saved one.

Sources: neuronx-distributed-inference, test/integration (``compile`` and ``load`` of a
``NeuronLlamaForCausalLM``); optimum-neuron 0.4, tests/decoder (``NxDNeuronConfig``, ``export``);
transformers-neuronx, base.py and the developer guide. There is no release of transformers-neuronx for
the torch that decodekit needs, so its tests need a build of your own.
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
"""Rows, positions, positions of context encoding, and columns of a verification."""


class Library(Protocol):
    """Interface of one library."""

    def compile(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """Compile the Llama in *checkpoint*, save it in *folder*, and wrap it."""
        ...

    def load(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """Wrap the model that :meth:`compile` saved, without compiling it again."""
        ...


class NxDInference:
    """neuronx-distributed-inference."""

    package = "neuronx-distributed-inference"

    def compile(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """Compile with continuous batching and a verification program."""
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
        """Load; the configuration is saved with the programs."""
        model = self._llama().NeuronLlamaForCausalLM(_with_slash(folder))
        model.load(_with_slash(folder))
        return NxDInferenceDecoder(model)

    def _llama(self) -> Any:
        return require_module("neuronx_distributed_inference.models.llama.modeling_llama", self.package)


class OptimumNeuron:
    """optimum-neuron."""

    package = "optimum-neuron"

    def compile(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """Compile with continuous batching and a verification program."""
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
        """Load; the folder holds everything."""
        return OptimumNeuronDecoder(self._models().from_pretrained(str(folder)))

    def _models(self) -> Any:
        return require_module("optimum.neuron", self.package).NeuronModelForCausalLM


class TransformersNeuronx:
    """transformers-neuronx."""

    package = "transformers-neuronx"

    def compile(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """Compile with a position per row and a verification program."""
        model = self._model(checkpoint)
        model.to_neuron()
        model.save(str(folder))
        return TransformersNeuronxDecoder(model)

    def load(self, checkpoint: Path, folder: Path) -> WrappedDecoder:
        """Load; only programs are saved, so the weights are those of *checkpoint*."""
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
"""All libraries, by name."""


def _with_slash(folder: Path) -> str:
    # Releases before 0.3 append a file name without a separator.
    return f"{folder}/"
