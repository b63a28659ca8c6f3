"""Decoders that run as PyTorch runs them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import attrs

from ..artifacts.manifest import Manifest
from ..artifacts.packages import Package
from ..kv_cache.shapes import DEFAULT_WIDTHS, clip_widths

if TYPE_CHECKING:
    from ..static_decoder import StaticDecoder


@attrs.frozen
class EagerTarget:
    """Compiles nothing: a decoder is eager as it is constructed."""

    name: ClassVar[str] = "eager"

    def require(self) -> None:
        """PyTorch is there."""

    def default_widths(self, max_length: int) -> tuple[int, ...]:
        """1, 5 and 128."""
        return clip_widths(DEFAULT_WIDTHS, max_length)

    def compile(self, decoder: "StaticDecoder") -> None:
        """Nothing is left to do."""

    def check(self, manifest: Manifest) -> None:
        """There is no program that might not fit."""

    def load(self, decoder: "StaticDecoder", packages: Mapping[str, Package], trust_programs: bool) -> None:
        """There is none to load."""
