"""The machine and the software of a measurement."""

import datetime
import hashlib
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ... import __version__
from ...neuron_backend.artifacts.machine import cpu_family, instruction_sets
from ...neuron_backend.targets.cpu.instruction_limit import instruction_limit

_PACKAGES = ("torch", "transformers", "numpy")
_THREADING = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_NUM_THREADS")
_INSTRUCTIONS = ("DECODEKIT_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")

# At the end of a benchmark it would be mostly that benchmark's own.
_LOAD_AT_START = round(os.getloadavg()[0], 2)

CPUINFO = Path("/proc/cpuinfo")
"""Where Linux describes its processors."""


def machine_facts(device: str | None = None) -> dict[str, str | int | float]:
    """
    Device, processor, memory, system, load before the benchmark, and variables that change the speed.

    Args:
        device: The device that computes. None: the processor.
    """
    facts: dict[str, str | int | float] = {
        "device": device or processor_name(),
        "processor": processor_name(),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        # Other load limits how far the figures can be trusted.
        "load_average": _LOAD_AT_START,
    }
    facts |= {name: os.environ[name] for name in (*_THREADING, *_INSTRUCTIONS) if name in os.environ}
    return facts


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name() -> str:
    """
    The processor's name, such as ``"AMD EPYC (family 26, model 2)"``.

    Family and model are added where they are known: virtual machines give several generations the same name.
    """
    first = CPUINFO.read_text().partition("\n\n")[0] if CPUINFO.exists() else ""
    parted = (line.partition(":") for line in first.splitlines())
    known = {key.strip(): value.strip() for key, _, value in parted}
    name = known.get("model name") or platform.processor() or platform.machine()
    if {"cpu family", "model"} <= set(known):
        name += f" (family {known['cpu family']}, model {known['model']})"
    return name


def versions(others: Sequence[str] = ()) -> dict[str, str]:
    """Versions of Python, of the packages that every benchmark uses, and of *others* if installed."""
    # decodekit's own: a checkout need not be installed, or may lie beside an installed one.
    found = {"Python": platform.python_version(), "decodekit": __version__}
    for name in (*_PACKAGES, *others):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def backend_digest() -> str:
    """
    A digest of the sources in ``neuron_backend/`` and of what else decides which programs they compile.

    That is the versions of torch and transformers, the processor, the limit of its instruction sets, and the
    C++ compiler. Compiled decoders are kept under it: other programs must not be timed as these.
    """
    sources = Path(__file__).parents[2] / "neuron_backend"
    chosen = [os.environ.get(name) for name in (*_INSTRUCTIONS, "CXX")]
    processor = [cpu_family(), instruction_sets(), instruction_limit()]
    known = [version("torch"), version("transformers"), processor, chosen]
    digest = hashlib.sha256(repr(known).encode())
    for file in sorted(path for path in sources.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        digest.update(str(file.relative_to(sources)).encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def today() -> str:
    """Date and time, UTC, to the minute."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
