"""Throughput of past steps, and the price of time derived from it."""

import statistics
from collections import deque

import attrs

_DECAY = 0.98
"""Decay of a sum per step: about fifty steps contribute to a mean."""


@attrs.define(eq=False)
class Pace:
    """
    Time and tokens of past steps.

    Long-run tokens per second are maximal if each step maximises tokens - ρ · seconds, where ρ is
    the tokens per second so achieved (renewal reward theorem). So ρ is the price of a second.

    Times are medians: robust to a prompt, a slow consumer or another program.
    """

    costs: tuple[float, ...] | None
    """Cost of each drafter per draft token, in forwards of the target (then the unit of time)."""

    _rests: deque[float] = attrs.field(factory=lambda: deque(maxlen=31), init=False)
    _costs: dict[int, deque[float]] = attrs.field(factory=dict, init=False)
    _tokens: float = attrs.field(default=1.0, init=False)
    _rows: float = attrs.field(default=1.0, init=False)
    _spent: float = attrs.field(default=0.0, init=False)
    _steps: float = attrs.field(default=0.0, init=False)

    def rested(self, seconds: float) -> None:
        """Record a step's seconds without drafting."""
        self._rests.append(seconds)

    def drafted(self, drafter: int, seconds: float, ahead: int) -> None:
        """Record a drafter's seconds for a draft of *ahead* tokens, over all its rows."""
        self._costs.setdefault(drafter, deque(maxlen=9)).append(seconds / ahead)

    def gained(self, tokens: int) -> None:
        """Record a row's tokens of a step."""
        self._tokens, self._rows = self._tokens * _DECAY + tokens, self._rows * _DECAY + 1

    def spent(self, seconds: float) -> None:
        """Record the expected drafting seconds of a step."""
        self._spent, self._steps = self._spent * _DECAY + seconds, self._steps * _DECAY + 1

    def cost(self, drafter: int) -> float:
        """Cost per draft token of *drafter*; 0 while unknown."""
        if self.costs is not None:
            return self.costs[drafter]
        return statistics.median(self._costs.get(drafter, [0.0]))

    def price(self) -> float:
        """ρ, tokens per row and unit of time; 0 while unknown."""
        rest = 1.0 if self.costs is not None else statistics.median(self._rests or [0.0])
        drafts = self._spent / self._steps if self._steps else 0.0
        return self._tokens / self._rows / (rest + drafts) if rest + drafts else 0.0
