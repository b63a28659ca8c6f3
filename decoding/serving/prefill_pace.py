"""How much of a newcomer's prompt is fed beside rows that decode."""

from collections.abc import Sequence

import attrs

_KEPT = 0.8
"""The share of earlier measurements in an estimate."""


@attrs.define(eq=False)
class PrefillPace:
    """
    The columns of a step in which some rows decode and others are still fed their prompts.

    A wider step feeds a prompt sooner, and keeps the rows that decode waiting for longer.
    """

    widths: Sequence[int]
    """Of the forwards that feed prompts, ascending."""

    most: int
    """Columns of a step at most."""

    max_gap: float | None = None
    """Seconds that a step may take, as far as earlier ones show; None for any number."""

    _seconds: dict[int, float] = attrs.field(factory=dict, init=False)
    """The estimate of a step of each width that was measured."""

    @property
    def columns(self) -> int:
        """The columns of the next step that feeds a prompt beside rows that decode."""
        fitting = [width for width in self.widths if width <= self.most and self._fits(width)]
        return max(fitting, default=self.widths[0])

    def learn(self, width: int, seconds: float, whole: bool = True) -> None:
        """
        Take the time of a step.

        Args:
            width: Columns of its forward.

            seconds: Its time.

            whole: Whether all of them were tokens. Otherwise only a longer time than expected is learned,
                since padding may cost less.
        """
        before = self._seconds.get(width, seconds)
        if whole or seconds > before:
            self._seconds[width] = _KEPT * before + (1 - _KEPT) * seconds

    def _fits(self, width: int) -> bool:
        if self.max_gap is None:
            return True
        measured = [known for known in self._seconds if known <= width]
        if not measured:
            # Unknown: begin with the narrowest that feeds more than one token.
            return width <= next((one for one in self.widths if one > 1), self.widths[0])
        nearest = max(measured)
        # In proportion to the columns, which is more than a wider forward takes.
        return self._seconds[nearest] * (width / nearest) <= self.max_gap
