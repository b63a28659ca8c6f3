"""The probe on machines with packages, partial packages and stubs."""

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from decodekit.neuron_backend.targets.neuron import detect
from decodekit.neuron_backend.targets.neuron.detect import (
    NeuronFound,
    neuron_versions,
    probe,
    runtime_started,
)

NATIVE = """
    import types
    import torch

    def get_fallback_ops(): return []
    torch.neuron = types.SimpleNamespace(device_count=lambda: 4, is_initialized=lambda: True)
"""
TRACED = "def trace(func, example_inputs): ..."

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package with a version until the test ends."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch, "neuron", None, raising=False)
    names = []

    def put(distribution: str, version: str, code: str | None = "", folder: str | None = None) -> None:
        name = distribution.replace("-", "_")
        names.append(name)
        facts = tmp_path / f"{name}-{version}.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        if folder is not None:
            (tmp_path / name / folder).mkdir(parents=True)
        if code is not None:
            file = f"{name}.py" if folder is None else f"{name}/__init__.py"
            (tmp_path / file).write_text(textwrap.dedent(code))
        importlib.invalidate_caches()

    yield put
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the number of the driver's devices."""

    def show(count: int) -> None:
        found = [f"/dev/neuron{number}" for number in range(count)]
        monkeypatch.setattr(detect.glob, "glob", lambda pattern: found)

    return show


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, devices: Callable[[int], None]) -> None:
    """A machine without packages or devices, wherever the suite runs."""
    monkeypatch.setattr(detect, "_version", lambda name: None)
    devices(0)


class TestProbe:
    @pytest.mark.usefixtures("bare")
    def test_finds_nothing_on_a_machine_without(self) -> None:
        """And reports what is missing."""
        found = probe()

        assert ("none", False, {}) == (found.kind, found.has_device, dict(found.versions))
        assert "no torch-neuronx is installed" in found.reason
        assert "torch-neuronx is not installed" in str(found)

    def test_finds_torch_neuron(self, install: Install) -> None:
        """By its PyTorch device, and its list of operations left to the host."""
        install("torch-neuronx", "2.14.3.0", NATIVE)
        install("neuronx-cc", "2.28.7631.0")
        found = probe()

        assert ("native", 4, True) == (found.kind, found.cores, found.has_device)
        assert {"torch-neuronx": "2.14.3.0", "neuronx-cc": "2.28.7631.0"} == dict(found.versions)
        assert "of which there are 4" in str(found)

    def test_cores_need_not_be_counted(self, install: Install, devices: Callable[[int], None]) -> None:
        """PyTorch keeps their number, which a variable may still change."""
        install("torch-neuronx", "2.14.3.0", NATIVE.replace("lambda: 4", "lambda: 1 / 0"))
        devices(1)
        found = probe(count_cores=False)

        assert ("native", None, True) == (found.kind, found.cores, found.has_device)
        assert str(found).endswith("  devices of the driver: 1")

    def test_a_native_package_without_a_core_has_no_device(self, install: Install) -> None:
        """Such as on a machine that only compiles, or without the driver."""
        install("torch-neuronx", "2.14.3.0", NATIVE.replace("lambda: 4", "lambda: 1 // 0"))
        found = probe()

        assert ("native", 0, False) == (found.kind, found.cores, found.has_device)

    def test_finds_the_package_that_traces(self, install: Install, devices: Callable[[int], None]) -> None:
        """With the driver's devices, since it has no PyTorch device."""
        install("torch-neuronx", "2.9.0.2.15.32035", TRACED)
        devices(2)
        found = probe()

        assert ("traced", 2, True, False) == (
            found.kind,
            found.devices,
            found.has_device,
            found.model_builder,
        )
        assert "at one width" in found.reason

    def test_a_traced_package_may_only_compile(self, install: Install) -> None:
        """neuronx-cc needs no device."""
        install("torch-neuronx", "2.9.0.2.15.32035", TRACED)

        assert ("traced", False) == (probe().kind, probe().has_device)

    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            pytest.param("class ModelBuilder: ...", True, id="there"),
            pytest.param("", False, id="without-it"),
            pytest.param("raise ImportError('torch_xla')", False, id="that-cannot-be-imported"),
        ],
    )
    def test_looks_for_a_model_builder(self, code: str, expected: bool, install: Install) -> None:
        """Which shares a state among several widths."""
        install("torch-neuronx", "2.9.0.2.15.32035", TRACED)
        install("neuronx-distributed", "0.17.26814", code, folder="trace")
        found = probe()

        assert expected == found.model_builder
        assert ("ModelBuilder" in found.reason) == expected

    def test_knows_stubs_by_their_version(self, install: Install) -> None:
        """Whatever they contain; the report names the index of the real ones."""
        install("torch-neuronx", "1.0", NATIVE)
        install("neuronx-cc", "1.0.post1")
        found = probe()

        assert ("none", {}, {"torch-neuronx": "1.0", "neuronx-cc": "1.0.post1"}) == (
            found.kind,
            dict(found.versions),
            dict(found.stubs),
        )
        assert "only a stub of torch-neuronx" in found.reason
        assert "torch_neuronx" not in sys.modules
        assert "torch-neuronx 1.0 is an empty package of the public index" in str(found)
        assert detect.INDEX in str(found)

    @pytest.mark.parametrize("folder", [None, "docs"])
    def test_knows_the_stub_of_nxd_by_what_it_lacks(self, folder: str | None, install: Install) -> None:
        """Its version could be that of a real one."""
        install("torch-neuronx", "2.9.0.2.15.32035", TRACED)
        install("neuronx-distributed", "0.1.0", folder=folder)
        found = probe()

        assert ({"neuronx-distributed": "0.1.0"}, False) == (dict(found.stubs), found.model_builder)
        assert "neuronx-distributed" not in found.versions
        assert "neuronx_distributed" not in sys.modules

    def test_a_stub_of_the_compiler_is_not_a_compiler(self, install: Install) -> None:
        """Beside a real torch-neuronx."""
        install("torch-neuronx", "2.14.3.0", NATIVE)
        install("neuronx-cc", "1.0.post1")
        found = probe()

        assert ("native", {"neuronx-cc": "1.0.post1"}) == (found.kind, dict(found.stubs))

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            pytest.param("raise OSError('libnrt.so.1')", "cannot be imported: OSError.*libnrt", id="broken"),
            pytest.param("", "neither a device nor trace", id="empty"),
        ],
    )
    def test_says_what_is_wrong_with_a_package(self, code: str, reason: str, install: Install) -> None:
        """Of a real version, but unusable."""
        install("torch-neuronx", "2.14.3.0", code)
        found = probe()

        assert found.kind == "none"
        with pytest.raises(ValueError, match=reason):
            raise ValueError(str(found))

    def test_changes_nothing(self, install: Install) -> None:
        """A second probe gives the same result."""
        install("torch-neuronx", "2.14.3.0", NATIVE)

        assert probe() == probe()


def test_versions_are_read_without_an_import(install: Install) -> None:
    """Of real packages only."""
    install("torch-neuronx", "2.14.3.0", "raise AssertionError")
    install("neuronx-cc", "1.0.post1")

    assert {"torch-neuronx": "2.14.3.0"} == neuron_versions()


def test_the_runtime_has_started_if_the_package_reports_it(install: Install) -> None:
    """And not before it is imported."""
    install("torch-neuronx", "2.14.3.0", NATIVE)
    before = runtime_started()
    probe()

    assert (False, True) == (before, runtime_started())


def test_the_report_has_a_line_for_each_fact() -> None:
    """Packages found, and packages missing."""
    found = NeuronFound("traced", "because", {"torch-neuronx": "2.9.0"}, {"neuronx-cc": "1.0.post1"}, 2)

    assert [
        "AWS Neuron: traced; because",
        "  torch-neuronx 2.9.0",
        f"  neuronx-cc 1.0.post1 is an empty package of the public index: pip install --extra-index-url "
        f"{detect.INDEX} brings the real one",
        "  neuronx-distributed is not installed",
        "  devices of the driver: 2; cores of PyTorch: 0",
    ] == str(found).splitlines()
