"""Stages of a chain, run on the whole vocabulary or on candidates, by short cuts where there are some."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import attrs
import torch
from torch import Tensor

from ..history import History
from ..optional_protocols import KeepsArgmax, Local
from ..protocols import Processor
from .candidates import Candidates
from .scratch import Workspace
from .short_cuts import GivesCandidates, TakesCandidates, WritesInto, short_cuts_of

Left: TypeAlias = Tensor | Candidates
"""Logits of the whole vocabulary, or of the remaining candidates."""


@attrs.frozen(eq=False)
class Stage:
    """A processor with its declarations and short cuts."""

    processor: Processor

    cuts: object | None
    """Its short cuts, of which these are resolved: *into*, *narrow* and *among*."""

    keeps_argmax: bool
    local: bool
    may_keep: bool
    """Whether it may keep a reference to its input; unknown for a processor without declarations."""

    into: Callable[[Tensor, History, Tensor], Tensor] | None
    narrow: Callable[[Tensor, History], Left] | None
    among: Callable[[Candidates, History], Candidates] | None

    @classmethod
    def of(cls, part: Processor) -> "Stage":
        """*part* with the short cuts of its exact type."""
        cuts = short_cuts_of(part)
        return cls(
            part,
            cuts,
            keeps_argmax=isinstance(part, KeepsArgmax) and part.keeps_argmax,
            local=isinstance(part, Local) and part.local,
            may_keep=not isinstance(part, Local),
            into=cuts.into if isinstance(cuts, WritesInto) else None,
            narrow=cuts.narrow if isinstance(cuts, GivesCandidates) else None,
            among=cuts.among if isinstance(cuts, TakesCandidates) else None,
        )


def run(stages: Iterable[Stage], left: Left, history: History, work: Workspace | None = None) -> Left:
    """Run *stages*, on candidates once there are few, and in the workspace where possible."""
    for stage in stages:
        if isinstance(left, Candidates):
            if stage.local:
                left = _among(stage, left, history)
                continue
            left = left.dense()
        shape = left.shape
        left = _step(stage, left, history, work)
        if not isinstance(left, Candidates):
            check_shape("processors", stage.processor, left, shape)
    return left


def _step(stage: Stage, left: Tensor, history: History, work: Workspace | None) -> Left:
    """Run *stage* on the whole vocabulary."""
    if left.device.type != "cpu":
        return stage.processor(left, history)
    # A view of the workspace, as a custom part may return, must not be overwritten.
    if work is not None and stage.into is not None and (left is work.logits or not work.holds(left)):
        out = left if left is work.logits else work.room(left)
        stage.into(left, history, out)
        return out
    if stage.narrow is not None:
        return stage.narrow(left, history)
    kept = work is not None and work.holds(left) and stage.may_keep
    return stage.processor(left.clone() if kept else left, history)


def _among(stage: Stage, left: Candidates, history: History) -> Candidates:
    if stage.among is not None:
        return stage.among(left, history)
    logits = stage.processor(left.logits, history)
    check_shape("processors", stage.processor, logits, left.logits.shape)
    return attrs.evolve(left, logits=logits)


def dense(left: Left) -> Tensor:
    """Logits of the whole vocabulary."""
    return left.dense() if isinstance(left, Candidates) else left


def check_shape(name: str, part: object, result: object, shape: torch.Size) -> None:
    """Raise ``ValueError`` unless *result*, which *part* returned, is a tensor of *shape*."""
    found = list(result.shape) if isinstance(result, Tensor) else result
    if found != list(shape):
        raise ValueError(
            f"'{name}' must give a tensor of the shape {list(shape)}: got {found!r} from {part!r}"
        )
