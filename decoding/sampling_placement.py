"""Placement of processors and sampler: device or host, and why."""

from typing import Literal

import attrs

_NAME_WIDTH = 60


@attrs.frozen
class Place:
    """The placement of one part."""

    part: str
    """The ``repr`` of a stage or of the sampler."""

    where: Literal["device", "host"]
    """``"device"``: within the decoder's own forward."""

    why: str


@attrs.frozen
class Placement:
    """The placement of a chain's stages and of the sampler; ``print`` it for a table."""

    places: tuple[Place, ...]
    """The stages in order, then the sampler."""

    notes: tuple[str, ...] = ()
    """Work that remains on the host nevertheless, and when."""

    @property
    def on_device(self) -> bool:
        """Whether all stages and the sampler run within the decoder's forward."""
        return all(place.where == "device" for place in self.places)

    def __str__(self) -> str:
        lines = [("part", "runs on", "why"), *((_cut(p.part), p.where, p.why) for p in self.places)]
        width = max(len(line[0]) for line in lines)
        return "\n".join(
            [f"{name:{width}}  {where:7}  {why}" for name, where, why in lines]
            + [f"note: {note}" for note in self.notes]
        )


def part_name(part: object) -> str:
    """The name of a function, or the class name of another object."""
    name: str = getattr(part, "__name__", type(part).__name__)
    return name


def _cut(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 3] + "..."
