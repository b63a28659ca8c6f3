"""The target of each name on each machine."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
import torch
from torch.torch_version import TorchVersion

from decodekit.neuron_backend import NativeTarget
from decodekit.neuron_backend.targets.cpu import toolchain
from decodekit.neuron_backend.targets.cuda.cuda_runtime import CudaRuntime
from decodekit.neuron_backend.targets.neuron import detect
from decodekit.neuron_backend.targets.neuron.detect import NeuronFound
from decodekit.neuron_backend.targets.registry import NAMES, target_named

Machine = Callable[..., None]


@attrs.frozen
class FakeTraced:
    """Stand-in for TracedTarget."""

    name: str = "neuron-traced"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Sets what the probe finds."""

    def of(kind: Any, **facts: Any) -> None:
        found = NeuronFound(kind, "as the test says", **facts)
        monkeypatch.setattr(detect, "probe", lambda: found)

    return of


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the module of TracedTarget, which needs torch-neuronx."""
    module = ModuleType("decodekit.neuron_backend.targets.neuron.traced_target")
    module.TracedTarget = FakeTraced  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def only_a_cpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a Neuron device nor a GPU."""
    machine("none")
    monkeypatch.setattr(CudaRuntime, "lack", lambda self: "no GPU")


class TestNeuron:
    @pytest.mark.parametrize(("kind", "expected"), [("native", "neuron-native"), ("traced", "neuron-traced")])
    def test_is_the_target_of_the_installed_packages(
        self, kind: str, expected: str, machine: Machine
    ) -> None:
        """With or without a device: packages may only compile."""
        machine(kind)

        assert expected == target_named("neuron").name

    def test_without_packages_is_an_error(self, machine: Machine) -> None:
        """With the whole report of the probe."""
        machine("none", stubs={"torch-neuronx": "1.0"})

        with pytest.raises(
            ValueError, match=r"needs the packages of AWS Neuron: got\nAWS Neuron: none(.|\n)*empty package"
        ):
            target_named("neuron")

    def test_may_be_named_in_full(self, machine: Machine) -> None:
        """For any result of the probe."""
        machine("none")

        assert NativeTarget() == target_named("neuron-native")
        assert FakeTraced() == target_named("neuron-traced")


class TestAuto:
    @pytest.mark.parametrize(
        ("kind", "facts", "expected"),
        [
            pytest.param("native", {"cores": 2}, "neuron-native", id="a-core-of-pytorch"),
            pytest.param("traced", {"devices": 1}, "neuron-traced", id="a-device-of-the-driver"),
            pytest.param("native", {"devices": 1}, "cpu", id="a-device-that-no-package-serves"),
            pytest.param("traced", {}, "cpu", id="packages-alone"),
            pytest.param("none", {"devices": 1}, "cpu", id="a-device-alone"),
        ],
    )
    def test_is_neuron_if_there_is_a_device(
        self,
        kind: str,
        facts: dict[str, int],
        expected: str,
        machine: Machine,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """And a package to run on it."""
        machine(kind, **facts)
        monkeypatch.setattr(toolchain, "has_compiler", lambda: True)

        assert expected == target_named("auto").name

    def test_is_eager_without_a_compiler(
        self, only_a_cpu: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With one line that says what to install; an explicit target is an error."""
        monkeypatch.setenv("PATH", "/nonexistent")
        monkeypatch.delenv("CXX", raising=False)

        assert "eager" == target_named("auto").name

        (record,) = caplog.records
        assert (logging.WARNING, "decodekit") == (record.levelno, record.name.partition(".")[0])
        assert toolchain.INSTALL_COMPILER in record.getMessage()
        with pytest.raises(ValueError, match=r"target 'cpu' needs a C\+\+ compiler and an archiver"):
            target_named("cpu").require()

    def test_is_eager_with_an_old_torch(
        self, only_a_cpu: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Whose compiled loops round otherwise."""
        monkeypatch.setattr(toolchain, "has_compiler", lambda: True)
        names = {}
        for version in ("2.9.1+cu128", "2.12.1", "2.13.0+cpu", "2.15.0"):
            monkeypatch.setattr(torch, "__version__", TorchVersion(version))
            names[version] = target_named("auto").name
            if names[version] == "eager":
                with pytest.raises(
                    ValueError, match=rf"needs torch 2\.13 or newer.* got torch {re.escape(version)}"
                ):
                    target_named("cpu").require()

        assert {"2.9.1+cu128": "eager", "2.12.1": "eager", "2.13.0+cpu": "cpu", "2.15.0": "cpu"} == names
        assert ["pip install 'torch>=2.13'" in line for line in caplog.messages] == [True, True]

    def test_says_nothing_with_a_compiler(
        self, only_a_cpu: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nor where the target was chosen."""
        monkeypatch.setattr(toolchain, "has_compiler", lambda: True)

        assert ("cpu", "eager") == (target_named("auto").name, target_named("eager").name)
        assert [] == caplog.records


@pytest.mark.parametrize("name", NAMES)
def test_each_name_stands_for_a_target(name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose own name is one of them."""
    machine("native", cores=1)
    monkeypatch.setattr(CudaRuntime, "lack", lambda self: None)

    assert target_named(name).name in NAMES


@pytest.mark.parametrize(
    ("name", "expected"),
    [("cpu", (1, 5, 128)), ("eager", (1, 5, 128)), ("neuron-native", (1, 5, 128, 256, 512, 600))],
)
def test_default_widths_are_the_targets(name: str, expected: tuple[int, ...]) -> None:
    """On a device, a prompt takes few forwards."""
    assert expected == target_named(name).default_widths(600)
    assert (1, 5, 100) == target_named(name).default_widths(100)


def test_text_without_a_compiler(tiny_model: Callable[[str], Any], tmp_path: Path) -> None:
    """A program that sets up no log prints its text, and one line about the compiler."""
    tiny_model("llama").save_pretrained(tmp_path)
    program = (
        "from decodekit.decoding import Generator, MaxNewTokens\n"
        "from decodekit.neuron_backend import compile_decoder\n"
        f"decoder = compile_decoder({str(tmp_path)!r}, max_length=32, widths=(1, 5))\n"
        "ids = Generator(decoder, stop=MaxNewTokens(8))([[5, 9, 2]]).ids\n"
        "print(decoder.target, len(ids[0]))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "CXX"}

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ["eager 8"] == done.stdout.splitlines()
    # Transformers prints lines of its own.
    assert 1 == sum(toolchain.INSTALL_COMPILER in line for line in done.stderr.splitlines())
