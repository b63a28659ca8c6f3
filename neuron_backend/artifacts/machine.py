"""What native code relies on."""

import platform
from pathlib import Path

# Instruction sets that a compiler picks for the machine it runs on; the other flags are of no
# concern to a program.
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


def processor() -> str:
    """The processor's family, such as ``"x86_64"``."""
    return platform.machine()


def instruction_sets() -> list[str]:
    """The instruction sets that the processor has; none where the system does not say."""
    source = Path("/proc/cpuinfo")
    if not source.exists():
        return []
    for line in source.read_text().splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return sorted(flag for flag in flags.split() if flag.startswith(_PREFIXES))
    return []
