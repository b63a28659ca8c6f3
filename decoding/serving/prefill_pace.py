"""How much of a newcomer's prompt is fed beside rows that decode."""

from collections.abc import Sequence
from typing import Protocol

import attrs

from ..token_feeder import TokenFeeder

_KEPT = 0.8
"""The share of earlier measurements in an estimate."""

_FIRST = 16
"""Tokens of the first step, of which no time is known."""

_FEWEST = 8
"""Tokens of a step at least: a forward of fewer takes hardly less."""


class PrefillPace(Protocol):
    """
    The columns of a step in which some rows decode and others are still fed their prompts.

    A wider step feeds a prompt sooner, and keeps the rows that decode waiting for longer.
    """

    @property
    def columns(self) -> int:
        """The columns of the next step that feeds a prompt beside rows that decode."""
        ...

    def learn(self, columns: int, tokens: int, seconds: float) -> None:
        """
        Take the time of a step.

        Args:
            columns: Columns of its forward.

            tokens: Those with a token; the others were padding.

            seconds: Its time.
        """
        ...


def prefill_pace(feeder: TokenFeeder, most: int | None = None, max_gap: float | None = None) -> PrefillPace:
    """
    The pace of prompts that *feeder* feeds: by tokens where padding takes no time, otherwise by widths.

    Args:
        feeder: Feeds the prompts.

        most: Columns of a step at most; None for the widest forward's.

        max_gap: Seconds that a step may take; None for any number.
    """
    widths = feeder.row_widths or feeder.shape.widths
    most = widths[-1] if most is None else min(most, widths[-1])
    if feeder.row_widths and feeder.skips_padding:
        return TokenPace(most, max_gap)
    return WidthPace(widths, most, max_gap)


@attrs.define(eq=False)
class WidthPace:
    """A pace where a forward takes as long as its width, whatever its padding."""

    widths: Sequence[int]
    """Of the forwards that feed prompts, ascending."""

    most: int
    """Columns of a step at most."""

    max_gap: float | None = None
    """Seconds that a step may take, as far as earlier ones show; None for any number."""

    _seconds: dict[int, float] = attrs.field(factory=dict, init=False)
    """The estimate of a step of each width that was measured."""

    _exceeded: set[int] = attrs.field(factory=set, init=False)
    """The widths whose newest step took longer than it may."""

    @property
    def columns(self) -> int:
        """See :class:`PrefillPace`: one of the widths."""
        fitting = [width for width in self.widths if width <= self.most and self._fits(width)]
        return max(fitting, default=self.widths[0])

    def learn(self, columns: int, tokens: int, seconds: float) -> None:
        """See :class:`PrefillPace`. Padding may cost less, so a short time with some says nothing."""
        if self.max_gap is None or seconds <= self.max_gap:
            if tokens >= columns:
                self._exceeded.discard(columns)
        elif columns not in self._exceeded:
            # One slow step may be the machine's, and a width that does not fit is not tried again.
            self._exceeded.add(columns)
            seconds = self.max_gap
        before = self._seconds.get(columns, seconds)
        seconds = min(seconds, 2 * before)
        if tokens >= columns or seconds > before:
            self._seconds[columns] = _KEPT * before + (1 - _KEPT) * seconds

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


@attrs.define(eq=False)
class TokenPace:
    """
    A pace where a forward takes as long as its tokens: any number of them, padded to a width.

    The number follows the ratio of the allowed seconds to those that steps took. A step also takes what rows
    that decode take, so twice the tokens take less than twice as long, and growing by the ratio or less does
    not go beyond the bound.
    """

    most: int
    """Tokens of a step at most."""

    max_gap: float | None = None
    """Seconds that a step may take, as far as earlier ones show; None for any number."""

    _tokens: float = attrs.field(init=False)
    """The number that the times show."""

    @_tokens.default
    def _first(self) -> float:
        return float(self.most if self.max_gap is None else min(self.most, _FIRST))

    @property
    def columns(self) -> int:
        """See :class:`PrefillPace`."""
        return int(self._tokens)

    def learn(self, columns: int, tokens: int, seconds: float) -> None:
        """See :class:`PrefillPace`."""
        if self.max_gap is None or seconds <= 0:
            return
        ratio, found = self.max_gap / seconds, self._tokens
        if ratio < 1:
            # At most by half, since one slow step may be the machine's.
            found = max(min(found, tokens * ratio), found / 2)
        elif tokens >= self.columns:
            # The square root, so that one fast step is not believed.
            found = max(found, tokens) * ratio**0.5
        self._tokens = float(min(max(found, _FEWEST), self.most))
