"""``scripts/compile-only`` without AWS's packages; with stand-ins for them see tests/neuron_stand_in."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from decodekit.neuron_backend.targets.neuron import detect
from decodekit.neuron_backend.targets.neuron.compile_only import absent_packages

SCRIPT = Path(__file__).parents[4] / "scripts" / "compile-only"


@pytest.mark.skipif(detect.neuron_versions() != {}, reason="AWS's packages are installed")
def test_says_what_is_absent() -> None:
    """Each package, where they are, and a status that is neither success nor a failed compilation."""
    command = [sys.executable, str(SCRIPT), "no model", "--platform", "trn1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ}, check=False)

    assert 3 == done.returncode
    for name in ("torch-neuronx", "neuronx-cc", "neuronx-distributed"):
        assert f"{name} is not installed" in done.stderr
    assert "pip install --extra-index-url https://pip.repos.neuron.amazonaws.com" in done.stderr


@pytest.mark.parametrize(
    ("way", "expected"), [("nxd", ["neuronx-distributed is not installed"]), ("trace", [])]
)
def test_needs_what_the_way_needs(way: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """NxD only where it compiles."""
    module = ModuleType("torch_neuronx")
    module.trace = print
    monkeypatch.setitem(sys.modules, "torch_neuronx", module)
    versions = {"torch-neuronx": "2.9.0", "neuronx-cc": "2.21"}
    monkeypatch.setattr(detect, "_distributions", lambda: (versions, {}))

    assert expected == absent_packages(way)


def test_the_package_must_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchNeuron has the same name."""
    module = ModuleType("torch_neuronx")
    module.get_fallback_ops = print
    device = ModuleType("neuron")
    device.device_count = lambda: 0
    monkeypatch.setitem(sys.modules, "torch_neuronx", module)
    monkeypatch.setattr(torch, "neuron", device, raising=False)
    versions = {"torch-neuronx": "2.13.3", "neuronx-cc": "2.22", "neuronx-distributed": "0.17"}
    monkeypatch.setattr(detect, "_distributions", lambda: (versions, {}))

    (absent,) = absent_packages("nxd")

    assert absent.startswith(
        "torch-neuronx 2.9 is needed, which traces: torch_neuronx has given PyTorch a device"
    )
