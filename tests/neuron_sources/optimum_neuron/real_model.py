"""
The real ``NxDModelForCausalLM``, its decoder wrappers, builders and ``NxDNeuronConfig``, over a tiny model.

Routing, padding and the order of rows are the library's own code. Stubs stand for the base classes that
export and load, and for the traced model, one callable that holds every graph.
"""

import copy
import logging
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from ...neuron_backend.adapters.kv_model import KvModel
from ..checkouts import OPTIMUM_NEURON
from ..source import take

_BACKEND = "optimum/neuron/models/inference/backend"
_TAGS = tuple(
    f"{name}_MODEL_TAG" for name in ("CHUNKED_PREFILL", "CONTEXT_ENCODING", "SPECULATION", "TOKEN_GENERATION")
)


class Pretrained:
    """Stands for ``NxDPreTrainedModel``: what its constructor stores, without files."""

    def __init__(
        self, config: Any, neuron_config: Any, traced_models: dict[str, Any], graph_builders: dict[str, Any]
    ) -> None:
        self.config, self.neuron_config = config, neuron_config


class ModelConfig:
    """Stands for the configuration of transformers, of a language model alone."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.vocab_size, self.pad_token_id = model.config.vocab_size, 0

    def get_text_config(self) -> "ModelConfig":
        """The model is a language model alone."""
        return self


class Traced:
    """
    Stands for the traced model: inputs of exactly a graph's shapes and dtypes, then computed.

    A graph of all rows takes them in the order of the cache. Its outputs are those of
    ``NxDDecoderModelForCausalLM``: tokens or logits, and with ``output_logits`` logits as well, gathered from
    two cores.
    """

    def __init__(self, device: KvModel, config: Any) -> None:
        self.device, self.config = device, config
        self.graphs: dict[str, Any] = {}
        self.calls: list[str] = []

    def __call__(self, *inputs: Tensor) -> Tensor | list[Tensor]:
        tags = [tag for tag, compiled in self.graphs.items() if _signature(inputs) == _signature(compiled)]
        if len(tags) != 1:
            raise RuntimeError(f"graphs for {_signature(inputs)}: {tags}, of {sorted(self.graphs)}")
        self.calls.append(tags[0])
        ids, positions, rows, _ = inputs
        if tags[0] == "context_encoding":
            by_row = self.config.continuous_batching
            return self._output(self.device.prompts(ids, positions, rows.tolist() if by_row else slice(None)))
        before = torch.arange(self.config.sequence_length) < positions[:, :1]
        by_row = tags[0] == "chunked_prefill"
        own = rows.tolist() if by_row else list(range(len(ids)))
        return self._output(self.device.columns(ids, positions, before, own), by_row)

    def _output(self, logits: Tensor, chunk: bool = False) -> Tensor | list[Tensor]:
        # The graph for chunks is exported without sampling.
        samples = self.config.on_device_sampling and not chunk
        first = logits[:, -1].argmax(dim=-1).int() if samples else logits
        gathered = logits if samples else torch.cat([logits, logits], dim=2)
        return [first, gathered] if self.config.output_logits else first


def _signature(inputs: tuple[Tensor, ...]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [(tuple(tensor.shape), tensor.dtype) for tensor in inputs]


def real_model(model: PreTrainedModel, **settings: Any) -> Any:
    """A loaded model over *model*, with *settings* of ``NxDNeuronConfig``, which lists its calls."""
    library = _library()
    config, own = library.NxDNeuronConfig(**settings), ModelConfig(model)
    traced = Traced(KvModel(model, config.max_batch_size, config.sequence_length), config)
    builders = library.Model.create_graph_builders(own, config)["model"]
    traced.graphs = {tag: builder.input_generator()[0] for tag, builder in builders.items()}
    loaded = library.Model(own, config, {"model": traced}, {"model": builders})
    loaded.routed = traced.calls
    return loaded


@cache
def _library() -> SimpleNamespace:
    """The library's own classes."""
    configs = take(
        OPTIMUM_NEURON.file(f"{_BACKEND}/config.py"),
        *("NxDNeuronConfig", "IncompatibleConfigError"),
        NeuronConfig=object,
        register_neuron_config=lambda cls: cls,
        torch=torch,
    )
    sampling = take(
        OPTIMUM_NEURON.file(f"{_BACKEND}/modules/generation/sampling.py"),
        *("prepare_sampling_params", "prepare_tensor", "validate_sampling_params"),
        torch=torch,
    )
    wrappers = take(
        OPTIMUM_NEURON.file(f"{_BACKEND}/modules/decoder/decoder_wrappers.py"),
        *("NxDDecoderWrapperForCausalLM", *_TAGS),
        NxDModelWrapper=torch.nn.Module,
        F=torch.nn.functional,
        logging=logging,
        torch=torch,
    )
    builders = take(
        OPTIMUM_NEURON.file(f"{_BACKEND}/modules/decoder/decoder_builders.py"),
        "NxDDecoderBuilderForCausalLM",
        # Stands for what compiles the graphs.
        NxDGraphBuilder=type("Builder", (), {"__init__": lambda self, priority: None}),
        prepare_sampling_params=sampling.prepare_sampling_params,
        torch=torch,
    )
    decoder = take(
        OPTIMUM_NEURON.file(f"{_BACKEND}/modules/decoder/modeling_decoder.py"),
        "NxDModelForCausalLM",
        # Stand for generate() and for the search of a class by model type.
        NxDGenerationMixin=type("Generation", (), {}),
        NeuronModelForCausalLM=type("Auto", (), {}),
        NxDPreTrainedModel=Pretrained,
        CausalLMOutputWithPast=CausalLMOutputWithPast,
        copy=copy,
        torch=torch,
        validate_sampling_params=sampling.validate_sampling_params,
        **vars(builders),
        **vars(wrappers),
    )

    class Model(decoder.NxDModelForCausalLM):
        """The real one, of an architecture that only the graphs know."""

        _model_cls = object

    return SimpleNamespace(Model=Model, NxDNeuronConfig=configs.NxDNeuronConfig)
