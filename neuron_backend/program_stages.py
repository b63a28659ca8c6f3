"""Names of the stages in which a decoder's programs are compiled."""

from collections.abc import Sequence

from .step import DecoderStep, Step, TreeStep


def compiling_names(steps: Sequence[tuple[Step, int]]) -> list[str]:
    """A name such as ``"compiling width 5 of 1, 5, 64"`` for each of a decoder's *steps* and widths."""
    widths: dict[str, list[str]] = {}
    for step, width in steps:
        widths.setdefault(step.kind, []).append(str(width))
    return [f"compiling {_described(step, width, widths[step.kind])}" for step, width in steps]


def _described(step: Step, width: int, widths: Sequence[str]) -> str:
    tree = "tree " if step.kind == TreeStep.kind else ""
    sampling = "" if step.kind in (DecoderStep.kind, TreeStep.kind) else " with sampling"
    return f"{tree}width {width} of {', '.join(widths)}{sampling}"
