"""
Detection of the installed AWS Neuron packages and devices.

Two packages are called torch-neuronx. From 2.13 on it is TorchNeuron: a device ``neuron`` of
PyTorch and a backend of :func:`torch.compile`, for Trainium2 and later. Up to 2.9 it traces
through XLA, for Inferentia2 and Trainium. The public index carries an empty stub of the same name, and
stubs of its companions. Sources: AWS Neuron SDK 2.33 and 2.31, release notes; the packages themselves.
"""

import glob
import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import attrs
import torch

INDEX = "https://pip.repos.neuron.amazonaws.com"
"""Package index with the real packages."""

# The lowest major version of each real package. The stubs of the first two are 1.0 and 1.0.post1.
_FIRST_MAJOR = {"torch-neuronx": 2, "neuronx-cc": 2, "neuronx-distributed": 0}

# A folder of each real package whose stub has a version that the real one could have too.
_FOLDERS = {"neuronx-distributed": "trace"}


@attrs.frozen
class NeuronFound:
    """Result of :func:`probe`; ``str()`` is a report."""

    kind: Literal["native", "traced", "none"]
    """
    ``"native"`` is TorchNeuron, ``"traced"`` the older package that traces through XLA.
    """

    reason: str
    """Why it is that kind, in a sentence."""

    versions: Mapping[str, str] = attrs.field(factory=dict)
    """Versions of the installed real packages, by distribution name."""

    stubs: Mapping[str, str] = attrs.field(factory=dict)
    """Versions of the installed empty packages from the public index."""

    devices: int = 0
    """Number of the driver's devices, /dev/neuron0, ..."""

    cores: int | None = 0
    """Number of PyTorch devices of a native package, ``"neuron:0"``, ..., one per core; None: not counted."""

    model_builder: bool = False
    """Whether neuronx-distributed has a ModelBuilder that traces several shapes over one state."""

    @property
    def has_device(self) -> bool:
        """Whether programs can run here; a package may also be installed only to compile."""
        found = self.devices if self.kind == "traced" or self.cores is None else self.cores
        return self.kind != "none" and found > 0

    def __str__(self) -> str:
        lines = [f"AWS Neuron: {self.kind}; {self.reason}"]
        lines += [f"  {name} {number}" for name, number in self.versions.items()]
        lines += [
            f"  {name} {number} is an empty package of the public index: "
            f"pip install --extra-index-url {INDEX} brings the real one"
            for name, number in self.stubs.items()
        ]
        lines += [
            f"  {name} is not installed"
            for name in _FIRST_MAJOR
            if name not in self.versions and name not in self.stubs
        ]
        cores = "" if self.cores is None else f"; cores of PyTorch: {self.cores}"
        return "\n".join([*lines, f"  devices of the driver: {self.devices}{cores}"])


def probe(count_cores: bool = True) -> NeuronFound:
    """
    Look for the packages and for devices. Imports installed packages, but starts no runtime.

    Args:
        count_cores: Whether to count the cores that PyTorch sees. It keeps the number for the process, so
            NEURON_RT_VISIBLE_CORES has to be set before.

    Returns:
        The packages found, and the reason for their classification. Never raises.
    """
    versions, stubs = _distributions()
    devices = len(glob.glob("/dev/neuron[0-9]*"))
    facts: dict[str, Any] = {"versions": versions, "stubs": stubs, "devices": devices}
    if "torch-neuronx" not in versions:
        lacking = "only a stub of torch-neuronx" if "torch-neuronx" in stubs else "no torch-neuronx"
        return NeuronFound("none", f"{lacking} is installed", **facts)
    try:
        module = importlib.import_module("torch_neuronx")
    except Exception as error:
        return NeuronFound("none", f"torch_neuronx cannot be imported: {error!r}", **facts)
    return _classify(module, facts, count_cores)


def neuron_versions() -> dict[str, str]:
    """Versions of the installed real packages, without importing any."""
    return _distributions()[0]


def runtime_started() -> bool:
    """Whether this process has started the Neuron runtime through PyTorch. Imports nothing."""
    device: Any = getattr(torch, "neuron", None)
    return "torch_neuronx" in sys.modules and hasattr(device, "is_initialized") and device.is_initialized()


def _distributions() -> tuple[dict[str, str], dict[str, str]]:
    """Installed real packages and stubs, each name to version."""
    installed = {name: number for name in _FIRST_MAJOR if (number := _version(name)) is not None}
    real = {name: number for name, number in installed.items() if _is_real(name, number)}
    return real, {name: number for name, number in installed.items() if name not in real}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _is_real(name: str, number: str) -> bool:
    major = number.partition(".")[0]
    if not major.isdigit() or int(major) < _FIRST_MAJOR[name]:
        return False
    return name not in _FOLDERS or _has_folder(name.replace("-", "_"), _FOLDERS[name])


def _has_folder(package: str, folder: str) -> bool:
    """Whether *package*, which is not imported, has a *folder*."""
    try:
        spec = find_spec(package)
    except ValueError:  # a module without a spec
        return False
    places = None if spec is None else spec.submodule_search_locations
    return any((Path(place) / folder).is_dir() for place in places or ())


def _classify(module: ModuleType, facts: Mapping[str, Any], count_cores: bool) -> NeuronFound:
    device = getattr(torch, "neuron", None)
    if callable(getattr(device, "device_count", None)) and callable(
        getattr(module, "get_fallback_ops", None)
    ):
        cores = _count(device) if count_cores else None
        there_are = "" if cores is None else f", of which there are {cores}"
        reason = f"torch_neuronx has given PyTorch a device{there_are}"
        return NeuronFound("native", reason, cores=cores, **facts)
    if callable(getattr(module, "trace", None)):
        builder = _has_model_builder(facts["versions"])
        by = "neuronx_distributed.ModelBuilder" if builder else "torch_neuronx.trace, at one width"
        return NeuronFound("traced", f"programs are made by {by}", model_builder=builder, **facts)
    return NeuronFound("none", "torch_neuronx has neither a device nor trace", **facts)


def _count(device: Any) -> int:
    # Fails if the driver is missing or of another version.
    try:
        return int(device.device_count())
    except Exception:
        return 0


def _has_model_builder(versions: Mapping[str, str]) -> bool:
    if "neuronx-distributed" not in versions:
        return False
    try:
        module = importlib.import_module("neuronx_distributed")
    except Exception:
        return False
    return callable(getattr(module, "ModelBuilder", None))
