"""Weights that Neuron cannot have are refused however they come."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from decodekit.neuron_backend import CompiledDecoder, compile_decoder
from decodekit.neuron_backend.targets.neuron.native_target import NativeTarget
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget

SHAPE: dict[str, Any] = {"max_length": 32, "widths": (1, 4)}
MESSAGE = "'weights' must be 'int8', 'int4' or None for target 'neuron-.*': got 'float8'"


def never(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    """A backend that must not be reached."""
    raise AssertionError("a graph over float8 weights was compiled")


@pytest.fixture(scope="module")
def decoder(tiny_model: Callable[..., PreTrainedModel]) -> CompiledDecoder:
    """An eager decoder in float8."""
    return compile_decoder(tiny_model("llama"), target="eager", weights="float8", **SHAPE)


@pytest.fixture
def native() -> NativeTarget:
    """TorchNeuron's target without its device."""
    return NativeTarget(device="cpu", backend=never)


def test_of_an_early_exit(decoder: CompiledDecoder, native: NativeTarget) -> None:
    """The model's own format is not an argument there."""
    with pytest.raises(ValueError, match=MESSAGE):
        decoder.early_exit(1, target=native)


def test_of_a_saved_decoder(decoder: CompiledDecoder, native: NativeTarget, tmp_path: Path) -> None:
    """A quantised model is not quantised again, so the argument is left out."""
    decoder.save(tmp_path / "saved")

    with pytest.raises(ValueError, match=MESSAGE):
        compile_decoder(tmp_path / "saved", target=native, **SHAPE)


def test_of_a_traced_decoder(decoder: CompiledDecoder) -> None:
    """Before it is divided, linted and traced."""
    with pytest.raises(ValueError, match=MESSAGE):
        TracedTarget().prepare(decoder)
