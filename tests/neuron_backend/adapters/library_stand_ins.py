"""
Stand-ins for the libraries' modules that :mod:`.libraries` calls, over the stand-ins of their models.

They refuse what the libraries refuse: unknown arguments, and folders without a saved model. Compilations
are counted.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from .nxd_stand_in import NxDModel
from .optimum_stand_in import OptimumModel
from .tnx_stand_in import TnxModel

COMPILED: list[str] = []
"""The compilations so far, by the library's name."""


class NxDConfig:
    """``NeuronConfig`` of neuronx-distributed-inference, with the settings in use."""

    KNOWN = frozenset(
        {
            *("tp_degree", "batch_size", "ctx_batch_size", "max_context_length", "seq_len"),
            *("is_continuous_batching", "speculation_length", "torch_dtype"),
        }
    )

    def __init__(self, **settings: Any) -> None:
        _refuse_unknown(settings, self.KNOWN)
        self.settings = settings


class NxDLlama(NxDModel):
    """``NeuronLlamaForCausalLM``."""

    def __init__(self, model_path: str, config: Any = None) -> None:
        self.path, self.given = Path(model_path), config
        if config is None:
            self.given = _load(self.path / "neuron_config.json")

    def compile(self, compiled_model_path: str) -> None:
        COMPILED.append("nxd-inference")
        _save(Path(compiled_model_path) / "neuron_config.json", {**self.given, "weights": str(self.path)})

    def load(self, compiled_model_path: str) -> None:
        saved = _load(Path(compiled_model_path) / "neuron_config.json")
        super().__init__(
            _llama(saved["weights"]),
            batch_size=saved["batch_size"],
            max_length=saved["seq_len"],
            max_context_length=saved["max_context_length"],
            context_buckets=(saved["max_context_length"],),
            token_buckets=(saved["seq_len"],),
            speculation_length=saved["speculation_length"],
            is_continuous_batching=saved["is_continuous_batching"],
        )


def nxd_inference_config(neuron_config: NxDConfig, load_config: Any = None) -> dict[str, Any]:
    """``LlamaInferenceConfig``."""
    load_config(SimpleNamespace())
    return {**neuron_config.settings, "torch_dtype": str(neuron_config.settings["torch_dtype"])}


def load_pretrained_config(model_path_or_name: str) -> Any:
    """Fills such a configuration from a checkpoint's."""
    return lambda config: vars(config).update(AutoConfig.from_pretrained(model_path_or_name).to_dict())


class OptimumConfig:
    """``NxDNeuronConfig`` of optimum-neuron, with the settings in use."""

    KNOWN = frozenset(
        {
            *("checkpoint_id", "batch_size", "sequence_length", "max_context_length", "continuous_batching"),
            *("speculation_length", "on_device_sampling", "tp_degree", "torch_dtype", "target"),
        }
    )

    def __init__(self, **settings: Any) -> None:
        _refuse_unknown(settings, self.KNOWN)
        self.settings = {**settings, "torch_dtype": str(settings["torch_dtype"])}


class OptimumLlama(OptimumModel):
    """``NeuronModelForCausalLM``."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        super().__init__(
            _llama(settings["checkpoint_id"]),
            batch_size=settings["batch_size"],
            sequence_length=settings["sequence_length"],
            max_context_length=settings["max_context_length"],
            speculation_length=settings["speculation_length"],
            continuous_batching=settings["continuous_batching"],
        )

    @classmethod
    def export(
        cls, model_id: str, neuron_config: OptimumConfig, load_weights: bool = False
    ) -> "OptimumLlama":
        COMPILED.append("optimum-neuron")
        assert load_weights
        return cls({**neuron_config.settings, "checkpoint_id": model_id})

    @classmethod
    def from_pretrained(cls, model_id: str) -> "OptimumLlama":
        return cls(_load(Path(model_id) / "neuron_config.json"))

    def save_pretrained(self, save_directory: str) -> None:
        _save(Path(save_directory) / "neuron_config.json", self.settings)


class TnxConfig:
    """``NeuronConfig`` of transformers-neuronx, with the settings in use."""

    def __init__(self, *, padding_side: str) -> None:
        self.layout = {"right": "2-D", "left": "1-D"}[padding_side]


class TnxLlama(TnxModel):
    """``LlamaForSampling``."""

    def __init__(self, path: str, sizes: dict[str, Any]) -> None:
        self.path, self.sizes = path, sizes
        self.saved: Path | None = None

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        *,
        batch_size: int,
        n_positions: int,
        context_length_estimate: int,
        amp: str,
        tp_degree: int,
        neuron_config: TnxConfig,
    ) -> "TnxLlama":
        assert ("f32", 1) == (amp, tp_degree)
        sizes = {"batch_size": batch_size, "n_positions": n_positions, "layout": neuron_config.layout}
        return cls(path, {**sizes, "context_buckets": (context_length_estimate,)})

    def enable_speculative_decoder(self, speculation_length: int) -> None:
        self.sizes["speculation_length"] = speculation_length

    def load(self, directory: str) -> None:
        self.saved = Path(directory)

    def to_neuron(self) -> None:
        if self.saved is None:
            COMPILED.append("transformers-neuronx")
        else:
            assert _load(self.saved / "programs.json") == json.loads(json.dumps(self.sizes))
        super().__init__(_llama(self.path), **self.sizes)

    def save(self, directory: str) -> None:
        _save(Path(directory) / "programs.json", self.sizes)


@contextmanager
def installed() -> Iterator[None]:
    """Make the stand-ins importable while the body runs."""
    modules = {
        "neuronx_distributed_inference.models.config": {"NeuronConfig": NxDConfig},
        "neuronx_distributed_inference.utils.hf_adapter": {"load_pretrained_config": load_pretrained_config},
        "neuronx_distributed_inference.models.llama.modeling_llama": {
            "LlamaInferenceConfig": nxd_inference_config,
            "NeuronLlamaForCausalLM": NxDLlama,
        },
        "optimum.neuron": {"NeuronModelForCausalLM": OptimumLlama},
        "optimum.neuron.models.inference.backend.config": {"NxDNeuronConfig": OptimumConfig},
        "optimum.neuron.utils.instance": {"current_instance_type": lambda: "trn1"},
        "transformers_neuronx.config": {"NeuronConfig": TnxConfig},
        "transformers_neuronx.llama.model": {"LlamaForSampling": TnxLlama},
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, members in modules.items():
            module = ModuleType(name)
            vars(module).update(members)
            patch.setitem(sys.modules, name, module)
        yield


def _refuse_unknown(settings: dict[str, Any], known: frozenset[str]) -> None:
    assert set(settings) <= known, f"unknown settings: {sorted(set(settings) - known)}"
    assert settings["torch_dtype"] == torch.float32


def _llama(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _save(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def _load(path: Path) -> Any:
    return json.loads(path.read_text())
