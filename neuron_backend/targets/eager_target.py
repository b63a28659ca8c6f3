"""Target for eager PyTorch, without compilation."""

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
    """Compiles nothing: a decoder is constructed eager."""

    name: ClassVar[str] = "eager"
    copies_by_program: ClassVar[bool] = False

    def require(self) -> None:
        """Nothing beyond PyTorch is required."""

    def default_widths(self, max_length: int) -> tuple[int, ...]:
        """1, 5 and 128."""
        return clip_widths(DEFAULT_WIDTHS, max_length)

    def compile(self, decoder: "StaticDecoder") -> None:
        """Compare with the stock model in the weights' own dtype, where that was not done yet."""
        if decoder.compared_in_float32:
            decoder.compare("the eager step")

    def check(self, manifest: Manifest) -> None:
        """There are no programs to check."""

    def load(self, decoder: "StaticDecoder", packages: Mapping[str, Package], trust_programs: bool) -> None:
        """There are no programs to load."""
