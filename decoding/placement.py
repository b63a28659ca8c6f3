"""Which part of a choice runs where, and why."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

import attrs

from .protocols import Processor, Selection

if TYPE_CHECKING:
    from .generator import Generator

_NAME_WIDTH = 60


@attrs.frozen
class Place:
    """Where one part runs."""

    part: str
    """The ``repr`` of a stage or of the selection."""

    where: Literal["device", "host"]
    """``"device"``: within the decoder's own forward."""

    why: str


@attrs.frozen
class Placement:
    """Where the stages of a chain run, and the selection; ``print`` it for a table."""

    places: tuple[Place, ...]
    """The stages in their order, the selection last."""

    notes: tuple[str, ...] = ()
    """What runs on the host all the same, and when."""

    @property
    def on_device(self) -> bool:
        """Whether the whole choice runs within the decoder's forward."""
        return all(place.where == "device" for place in self.places)

    def __str__(self) -> str:
        lines = [("part", "runs on", "why"), *((_cut(p.part), p.where, p.why) for p in self.places)]
        width = max(len(line[0]) for line in lines)
        return "\n".join(
            [f"{name:{width}}  {where:7}  {why}" for name, where, why in lines]
            + [f"note: {note}" for note in self.notes]
        )


def explain(generator: "Generator") -> Placement:
    """Where the parts of *generator*'s choice run: what its decoder says, and what else bears on it."""
    processors, selection = generator.processors, cast("Selection", generator.selection)
    says = getattr(generator.decoder, "explain", None)
    if says is None:
        return _all_on_host(processors, selection, "the decoder has no forwards that choose")
    placement: Placement = says(processors, selection)
    if not placement.on_device:
        return placement
    notes = []
    if generator.record_gap:
        notes.append("'record_gap' reads the scores of every token")
    if not getattr(generator.verification, "reads_choices", True) and generator.drafter is not None:
        notes.append(f"where tokens were guessed, {generator.verification!r} reads the scores, and no choice")
    return attrs.evolve(placement, notes=(*placement.notes, *notes))


def _all_on_host(processors: Processor | None, selection: Selection, why: str) -> Placement:
    """The placement of a chain no part of which a decoder runs."""
    alone = () if processors is None else (processors,)
    parts: Sequence[object] = (*getattr(processors, "processors", alone), selection)
    return Placement(tuple(Place(repr(part), "host", why) for part in parts))


def _cut(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 3] + "..."
