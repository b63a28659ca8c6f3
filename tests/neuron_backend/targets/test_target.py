"""The target of each name on each machine."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import attrs
import pytest

from decodekit.neuron_backend import NativeTarget
from decodekit.neuron_backend.targets.cpu import aoti
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
        monkeypatch.setattr(aoti, "has_compiler", lambda: True)

        assert expected == target_named("auto").name


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
