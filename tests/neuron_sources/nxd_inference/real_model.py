"""
The real ``NeuronBaseForCausalLM``, ``ModelWrapper`` and ``NeuronConfig`` of a checkout, over a tiny model.

Routing, padding, buckets and the order of rows are the library's own code. Stubs stand for the base class
that compiles and loads, for the configuration of the language model, and for the compiled graphs.
"""

import copy
import enum
import inspect
import json
import logging
import math
import os
import warnings
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from ...neuron_backend.adapters.kv_model import KvModel
from ..checkouts import NXDI
from ..source import take

_ROOT = "src/neuronx_distributed_inference"
_TAGS = tuple(
    f"{name}_MODEL_TAG"
    for name in (
        *("CONTEXT_ENCODING", "TOKEN_GENERATION", "SPECULATION"),
        *("MEDUSA", "FUSED_SPECULATION", "VISION_ENCODER"),
    )
)


class Application(torch.nn.Module):
    """Stands for ``NeuronApplicationBase``: what its constructor stores, without files."""

    def __init__(self, config: "ModelConfig") -> None:
        super().__init__()
        self.config, self.neuron_config = config, config.neuron_config
        self.on_device_sampling = self.neuron_config.on_device_sampling_config is not None
        self.models: list[Any] = []

    def get_compiler_args(self) -> str:
        """Nothing is compiled."""
        return ""


class ModelConfig:
    """Stands for ``InferenceConfig``: the language model's configuration beside the library's own."""

    def __init__(self, model: PreTrainedModel, neuron_config: Any) -> None:
        self.neuron_config = neuron_config
        self.vocab_size, self.hidden_size = model.config.vocab_size, model.config.hidden_size
        self.output_attentions = self.output_hidden_states = False
        self.pad_token_id = 0

    def get_text_config(self) -> "ModelConfig":
        """The model is a language model alone."""
        return self


class Graphs:
    """
    Stands for the compiled graphs of one tag: inputs of exactly a compiled shape and dtype, then computed.

    A graph takes the rows of the cache in order, ignoring ``seq_ids``, except in context encoding under
    continuous batching.
    """

    def __init__(self, wrapper: Any, device: KvModel, config: Any, calls: list[str]) -> None:
        self.tag, self.device, self.config, self.calls = wrapper.tag, device, config, calls
        self.compiled = [_signature(inputs) for inputs in wrapper.input_generator()]

    def __call__(self, *inputs: Tensor) -> Tensor | list[Tensor]:
        if _signature(inputs) not in self.compiled:
            raise RuntimeError(f"{self.tag} has no graph for {_signature(inputs)}, only {self.compiled}")
        self.calls.append(self.tag)
        ids, mask, positions, rows = inputs[:4]
        if self.tag == "context_encoding_model":
            by_row = self.config.is_continuous_batching
            logits = self.device.prompts(ids, positions, rows.tolist() if by_row else slice(None))
        else:
            if positions.max() >= mask.shape[1]:
                raise RuntimeError(f"position {int(positions.max())} in a bucket of {mask.shape[1]}")
            logits = self.device.columns(ids, positions, mask, list(range(len(ids))))
        if self.config.on_device_sampling_config is None:
            return logits
        return [logits.argmax(dim=-1).int(), logits]


def _signature(inputs: tuple[Tensor, ...]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [(tuple(tensor.shape), tensor.dtype) for tensor in inputs]


def real_model(model: PreTrainedModel, **settings: Any) -> Any:
    """A loaded model over *model*, with *settings* of ``NeuronConfig``, which lists its calls."""
    library = _library()
    if sampling := settings.pop("samples", False):
        settings |= {"on_device_sampling_config": library.OnDeviceSamplingConfig(), "output_logits": True}
    config = library.NeuronConfig(**settings)
    loaded = library.Model(ModelConfig(model, config))
    device = KvModel(model, config.kv_cache_batch_size, config.max_length)
    loaded.routed = []
    for wrapper in loaded.models:
        wrapper.model = Graphs(wrapper, device, config, loaded.routed)
    assert sampling == loaded.on_device_sampling
    return loaded


@cache
def _library() -> SimpleNamespace:
    """The library's own classes."""
    common = {"torch": torch, "logging": logging, "warnings": warnings}
    configs = take(
        NXDI.file(f"{_ROOT}/models/config.py"),
        *("NeuronConfig", "OnDeviceSamplingConfig", "TensorCaptureConfig", "TensorReplacementConfig"),
        # Stand for a device of the first generation.
        get_platform_lnc=lambda: 1,
        get_platform_target=lambda: "trn1",
        hardware=enum.Enum("hardware", {"TRN1": "trn1"}),
        # The configuration writes the kind of device to the environment.
        os=SimpleNamespace(environ=dict(os.environ)),
        **common,
    )
    sampling = take(
        NXDI.file(f"{_ROOT}/modules/generation/sampling.py"),
        *("prepare_sampling_params", "infer_sampling_params", "validate_sampling_params", "prepare_tensor"),
        OnDeviceSamplingConfig=configs.OnDeviceSamplingConfig,
        logger=logging.getLogger(__name__),
        **common,
    )
    padding = take(NXDI.file(f"{_ROOT}/modules/padding.py"), "pad_with_first_batchline", **common)
    ranked = take(NXDI.file(f"{_ROOT}/modules/async_execution.py"), "is_ranked_io", **common)
    wrapper = take(
        NXDI.file(f"{_ROOT}/models/model_wrapper.py"),
        *("ModelWrapper", *_TAGS),
        F=torch.nn.functional,
        json=json,
        os=os,
        pad_with_first_batchline=padding.pad_with_first_batchline,
        is_ranked_io=ranked.is_ranked_io,
        **vars(sampling),
        **common,
    )
    names = ("cte", "tkg", "speculation")
    buckets = take(
        NXDI.file(f"{_ROOT}/modules/autobucketing.py"),
        *("generate_buckets", *(f"generate_buckets_for_{name}" for name in names)),
        log2=math.log2,
    )
    base = take(
        NXDI.file(f"{_ROOT}/models/model_base.py"),
        "NeuronBaseForCausalLM",
        NeuronApplicationBase=Application,
        CausalLMOutputWithPast=CausalLMOutputWithPast,
        autobucketing=buckets,
        copy=copy,
        inspect=inspect,
        os=os,
        **vars(wrapper),
        **vars(sampling),
        **common,
    )

    class Wrapper(wrapper.ModelWrapper):
        """The real one; its graphs are on the device as soon as it has them."""

        def is_neuron(self) -> bool:
            return self.model is not None

    class Model(base.NeuronBaseForCausalLM):
        """The real one, over such wrappers."""

        def get_model_wrapper_cls(self) -> type:
            return Wrapper

    return SimpleNamespace(Model=Model, **vars(configs))
