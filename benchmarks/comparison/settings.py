"""What a comparison measures: systems, weight formats, lengths."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import attrs

from ..measuring.arguments import check_at_least
from ..models.shapes import Shape

DECODEKIT, TRANSFORMERS, LLAMA_CPP = "decodekit", "transformers", "llama.cpp"

_DTYPES = {"float32": 32, "bfloat16": 16, "float16": 16}
_STORED = {f"{dtype}-{weights}": bits for dtype in _DTYPES for weights, bits in (("int8", 8), ("int4", 4))}
_BITS = {
    DECODEKIT: _DTYPES | _STORED,
    TRANSFORMERS: _DTYPES,
    LLAMA_CPP: {"F32": 32, "BF16": 16, "F16": 16, "Q8_0": 8, "Q4_0": 4},
}
"""Bits of a weight, by system and format."""


@attrs.frozen
class Entry:
    """A system with one weight format."""

    system: str
    format: str
    """A dtype, or a dtype and a weight format, such as ``"bfloat16-int8"``; or a GGUF type."""

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.system} {self.format}"

    @property
    def bits(self) -> int:
        """Bits of a weight; 0 for a format that the system does not have here."""
        return _BITS[self.system].get(self.format, 0)


@attrs.frozen
class Comparison:
    """The settings of a comparison."""

    shape: Shape
    entries: tuple[Entry, ...]
    prompts: tuple[int, ...] = (64, 512)
    """Prompt lengths; tokens are generated after the first."""

    tokens: int = 64
    rounds: int = 5
    threads: int = 2
    widths: tuple[int, ...] = (1, 64, 512)
    target: str = "cpu"
    folder: Path | None = None
    """Keeps the model, the GGUF files and compiled decoders. None: nothing is kept."""

    peer_python: str = ""
    """An interpreter that has llama-cpp-python and gguf. Empty: this one."""

    busy: int = 0
    """Processes that compute meanwhile."""

    @property
    def max_length(self) -> int:
        """Positions of every system's cache."""
        return max(1024, max(self.prompts) + self.tokens)

    def check(self) -> None:
        """
        Check the settings.

        Raises:
            ValueError: One is invalid.
        """
        check_at_least("tokens", self.tokens, 2)
        check_at_least("rounds", self.rounds, 1)
        check_at_least("threads", self.threads, 1)
        check_at_least("busy", self.busy, 0)
        if not self.entries:
            raise ValueError("'entries' must not be empty: got no format of any system")
        for entry in self.entries:
            if not entry.bits:
                formats = ", ".join(_BITS[entry.system])
                raise ValueError(
                    f"'entries' must have formats from {formats} for {entry.system}: got {entry.format}"
                )
        if self.peer_python and shutil.which(self.peer_python) is None:
            raise ValueError(f"'peer_python' must be a program that can be run: got {self.peer_python!r}")


def entries(
    decodekit: Sequence[str], transformers: Sequence[str], llama_cpp: Sequence[str]
) -> tuple[Entry, ...]:
    """
    An entry for each format, those of equal bits next to each other.

    >>> [entry.name for entry in entries(["float32", "bfloat16-int8"], ["float32"], ["Q8_0"])]
    ['decodekit float32', 'transformers float32', 'decodekit bfloat16-int8', 'llama.cpp Q8_0']
    """
    found = [
        Entry(system, each)
        for system, formats in ((DECODEKIT, decodekit), (TRANSFORMERS, transformers), (LLAMA_CPP, llama_cpp))
        for each in formats
    ]
    return tuple(sorted(found, key=lambda entry: -entry.bits))
