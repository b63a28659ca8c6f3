"""What a measurement was made on and with."""

import datetime
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("decodekit", "torch", "transformers", "numpy")
_THREADING = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_NUM_THREADS")


def machine_facts(device: str | None = None) -> dict[str, str | int | float]:
    """
    The machine in words and numbers.

    Args:
        device: What computes, if it is not the processor.
    """
    facts: dict[str, str | int | float] = {
        "device": device or processor_name(),
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        # What else was going on says how far to trust the numbers.
        "load_average": round(os.getloadavg()[0], 2),
    }
    facts |= {name: os.environ[name] for name in _THREADING if name in os.environ}
    return facts


def processor_name() -> str:
    """As the system calls it, such as ``"Intel(R) Xeon(R) Processor"``."""
    source = Path("/proc/cpuinfo")
    lines = source.read_text().splitlines() if source.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def versions(others: Sequence[str] = ()) -> dict[str, str]:
    """Of Python, of what every benchmark uses, and of those *others* that are installed."""
    found = {"Python": platform.python_version()}
    for name in (*_PACKAGES, *others):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def today() -> str:
    """The date and the time, UTC, to the minute."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
