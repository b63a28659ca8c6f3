"""Optional capabilities of streamers."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class HearsPrompts(Protocol):
    """A streamer that receives the prompts before the generation starts."""

    def begin(self, prompts: list[list[int]]) -> None:
        """Take the ids of every row's prompt."""


@runtime_checkable
class HearsFailure(Protocol):
    """A streamer that receives errors; others get ``end``."""

    def fail(self, error: BaseException) -> None:
        """Take the exception of the generation, in place of ``end``."""
