"""CPU family and instruction sets that native code relies on."""

import platform
from pathlib import Path

# CPU flags of instruction sets that a compiler may use; the others do not affect a program.
_PREFIXES = (
    "adx",
    "aes",
    "amx",
    "asimd",
    "avx",
    "bmi",
    "f16c",
    "fma",
    "gfni",
    "movbe",
    "popcnt",
    "sha",
    "sse",
    "ssse",
    "sve",
    "vaes",
    "vpclmul",
)


def cpu_family() -> str:
    """The CPU's family, such as ``"x86_64"``."""
    return platform.machine()


def instruction_sets() -> list[str]:
    """The CPU's instruction sets; empty where the system does not report them."""
    source = Path("/proc/cpuinfo")
    if not source.exists():
        return []
    for line in source.read_text().splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return sorted(flag for flag in flags.split() if flag.startswith(_PREFIXES))
    return []
