"""Names of the stages in which a decoder's programs are compiled."""

from collections.abc import Sequence

from .row_steps import RowStep
from .step import DecoderStep, TreeStep

_DESCRIBED = {DecoderStep.kind: "{}", TreeStep.kind: "tree {}", RowStep.kind: "{} for one row"}


def compiling_names(programs: Sequence[tuple[str, int]]) -> list[str]:
    """A name such as ``"compiling width 5 of 1, 5, 64"`` for each of *programs*, kinds and widths."""
    widths: dict[str, list[str]] = {}
    for kind, width in programs:
        widths.setdefault(kind, []).append(str(width))
    return [
        "compiling "
        + _DESCRIBED.get(kind, "{} with sampling").format(f"width {width} of {', '.join(widths[kind])}")
        for kind, width in programs
    ]
