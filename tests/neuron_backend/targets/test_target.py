"""Which target a name stands for on which machine."""

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
    """Stands for the target of packages that trace."""

    name: str = "neuron-traced"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One on which the probe finds just that."""

    def of(kind: Any, **facts: Any) -> None:
        found = NeuronFound(kind, "as the test says", **facts)
        monkeypatch.setattr(detect, "probe", lambda: found)

    return of


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that has that target, whatever it needs."""
    module = ModuleType("decodekit.neuron_backend.targets.neuron.traced_target")
    module.TracedTarget = FakeTraced  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


class TestNeuron:
    @pytest.mark.parametrize(("kind", "expected"), [("native", "neuron-native"), ("traced", "neuron-traced")])
    def test_is_what_the_packages_are_for(self, kind: str, expected: str, machine: Machine) -> None:
        """With or without a device: some packages compile without one."""
        machine(kind)

        assert expected == target_named("neuron").name

    def test_without_packages_says_what_is_there(self, machine: Machine) -> None:
        """The whole report."""
        machine("none", stubs={"torch-neuronx": "1.0"})

        with pytest.raises(
            ValueError, match=r"needs the packages of AWS Neuron: got\nAWS Neuron: none(.|\n)*empty package"
        ):
            target_named("neuron")

    def test_may_be_named_in_full(self, machine: Machine) -> None:
        """Whatever the probe finds."""
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
    def test_is_neuron_where_a_device_is_really_there(
        self,
        kind: str,
        facts: dict[str, int],
        expected: str,
        machine: Machine,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """And something to run on it."""
        machine(kind, **facts)
        monkeypatch.setattr(aoti, "has_compiler", lambda: True)

        assert expected == target_named("auto").name


@pytest.mark.parametrize("name", NAMES)
def test_each_name_stands_for_a_target(name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has one of these names itself."""
    machine("native", cores=1)
    monkeypatch.setattr(CudaRuntime, "lack", lambda self: None)

    assert target_named(name).name in NAMES


@pytest.mark.parametrize(
    ("name", "expected"),
    [("cpu", (1, 5, 128)), ("eager", (1, 5, 128)), ("neuron-native", (1, 5, 128, 256, 512, 600))],
)
def test_default_widths_are_the_targets(name: str, expected: tuple[int, ...]) -> None:
    """A device takes a prompt in as few forwards as can be."""
    assert expected == target_named(name).default_widths(600)
    assert (1, 5, 100) == target_named(name).default_widths(100)
