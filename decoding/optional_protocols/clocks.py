"""Optional capability of parts that read a clock."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class DecidesByTime(Protocol):
    """A stop condition, a drafter or a draft length that reads a clock, if only to be faster."""

    @property
    def decides_by_time(self) -> bool:
        """Whether it does: then processes with the same tokens may decide differently."""
        ...


def decides_by_time(part: object) -> bool:
    """Whether *part* :attr:`~DecidesByTime.decides_by_time`; False if it does not say so."""
    return isinstance(part, DecidesByTime) and part.decides_by_time
