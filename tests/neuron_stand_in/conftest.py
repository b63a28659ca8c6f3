"""
Fixtures for decoders that are traced for Neuron, on a CPU.

``modules/`` holds stand-ins for torch_neuronx and neuronx_distributed that lower with torch_xla. They
need torch 2.9, so these tests run in a separate environment: scripts/test-neuron-stand-in.

Tests of ``pair`` run on a device as well, with the packages themselves: ``pytest -m neuron``.
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest
from transformers import PreTrainedModel

from decodekit.neuron_backend import CompiledDecoder, compile_decoder
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget

from ..neuron_backend.on_device import ON_DEVICE, Pair, require_device, require_kind

MODULES = Path(__file__).parent / "modules"
SHAPE: dict[str, Any] = {
    "batch_size": 2,
    "max_length": 64,
    "widths": (1, 5, 16),
    "scored_width": 5,
    # The shorter span is shorter than the widest width: that pair has no program.
    "spans": (12, 64),
}


@attrs.frozen(eq=False)
class Built:
    """A decoder, and its programs and cache on the device."""

    decoder: CompiledDecoder
    executables: int
    """Programs that XLA compiled while it was built."""

    aliased: int
    """Outputs of these programs that are aliased to inputs."""

    states: dict[str, Any]
    """The cache on the device: ``torch_neuronx.runtime.State`` by name."""

    cores: list[dict[str, Any]]
    """The same for each core."""

    def addresses(self) -> dict[str, int]:
        """Address of each piece of the cache."""
        return {name: state.address for name, state in self.states.items()}


@pytest.fixture(scope="session", autouse=True)
def stand_ins(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make ``import torch_neuronx`` find the stand-in, unless the real package is tested."""
    if all(item.get_closest_marker("stand_in") is None for item in request.session.items):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PJRT_DEVICE", "CPU")
        patch.setenv("NEURON_RT_NUM_CORES", "2")
        # Such small programs take longer to optimise than to run.
        patch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "--xla_backend_optimization_level=0"))
        patch.setattr(sys, "path", [str(MODULES), *sys.path])
        yield


@pytest.fixture(scope="session")
def modules() -> Path:
    """The folder of the stand-ins, for other processes."""
    return MODULES


def build(model: PreTrainedModel, target: TracedTarget, **shape: Any) -> Built:
    """Compile, and read what XLA compiled meanwhile."""
    import torch_xla.debug.metrics as metrics
    from torch_neuronx.runtime import resident

    decoder = compile_decoder(model, target=target, **{**SHAPE, **shape})
    # The stand-in resets its counts whenever it traces; programs run after the last trace.
    aliased = metrics.metric_data("InputOutputAliasCount")
    return Built(
        decoder,
        executables=metrics.counter_value("UncachedCompile"),
        aliased=int(aliased[1]) if aliased else 0,
        states=resident[-1],
        cores=resident[-decoder.tp_degree :],
    )


@pytest.fixture(scope="session")
def built_by(tiny_model: Callable[..., PreTrainedModel]) -> Callable[[str], Built]:
    """Builds one decoder for each way of tracing, once."""
    return cache(lambda way: build(tiny_model("llama"), TracedTarget(way=way)))


@pytest.fixture(scope="session", params=["nxd", "trace"])
def built(request: pytest.FixtureRequest, built_by: Callable[[str], Built]) -> Built:
    """One decoder for each way of tracing; the cache holds the previous test's tokens."""
    return built_by(request.param)


def on_device(way: str, model: PreTrainedModel) -> CompiledDecoder:
    """The same decoder for a device."""
    found = require_device()
    require_kind(found, "traced", "torch-neuronx 2.9")
    if way == "nxd" and not found.model_builder:
        pytest.skip("neuronx-distributed, with a ModelBuilder, is not installed")
    return compile_decoder(model, target=TracedTarget(way=way), **SHAPE)


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(("stand-in", "nxd"), id="nxd", marks=pytest.mark.stand_in),
        pytest.param(("stand-in", "trace"), id="trace", marks=pytest.mark.stand_in),
        pytest.param(("device", "nxd"), id="nxd-on-device", marks=ON_DEVICE),
        pytest.param(("device", "trace"), id="trace-on-device", marks=ON_DEVICE),
    ],
)
def pair(
    request: pytest.FixtureRequest,
    built_by: Callable[[str], Built],
    tiny_model: Callable[..., PreTrainedModel],
) -> Pair:
    """A traced decoder and an eager one, on the stand-ins or on a device."""
    place, way = request.param
    model = tiny_model("llama")
    traced = built_by(way).decoder if place == "stand-in" else on_device(way, model)
    return Pair(traced, compile_decoder(model, target="eager", **SHAPE), exact=place == "stand-in")


@pytest.fixture(scope="session")
def trace_decoder() -> Callable[..., Built]:
    """Builds further decoders."""
    return build


@pytest.fixture
def eager(tiny_model: Callable[..., PreTrainedModel]) -> CompiledDecoder:
    """The same decoder, eager."""
    return compile_decoder(tiny_model("llama"), target="eager", **SHAPE)


@pytest.fixture
def sampled_widths(sampling: Built, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Widths of the forwards in which a module's ``sampling`` decoder sampled."""
    widths: list[int] = []

    def watched(program: Any) -> Any:
        def run(ids: Any, *others: Any) -> Any:
            widths.append(ids.shape[1])
            return program(ids, *others)

        return run

    programs = {width: watched(program) for width, program in sampling.decoder.fused_programs.items()}
    monkeypatch.setattr(sampling.decoder, "fused_programs", programs)
    return widths
