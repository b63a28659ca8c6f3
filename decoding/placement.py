"""Which part of a choice runs where, and why."""

from typing import Literal

import attrs

_NAME_WIDTH = 60


@attrs.frozen
class Place:
    """Where one part runs."""

    part: str
    """The ``repr`` of a stage or of the sampler."""

    where: Literal["device", "host"]
    """``"device"``: within the decoder's own forward."""

    why: str


@attrs.frozen
class Placement:
    """Where the stages of a chain run, and the sampler; ``print`` it for a table."""

    places: tuple[Place, ...]
    """The stages in their order, the sampler last."""

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


def part_name(part: object) -> str:
    """The name of a function, or of the class of anything else."""
    name: str = getattr(part, "__name__", type(part).__name__)
    return name


def _cut(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 3] + "..."
