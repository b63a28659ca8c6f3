"""How fast text comes, and so what a guess has to be worth."""

import statistics
from collections import deque

import attrs

_FADE = 0.98
"""What remains of a sum after a round: some fifty rounds bear on a mean."""


@attrs.define(eq=False)
class Pace:
    """
    What the rounds so far took and gave.

    In the long run most tokens a second are had by taking, in each round, what makes
    tokens - ρ · seconds largest, ρ being the tokens a second that are had so (renewal reward).
    So ρ is the price of a second: who spends one has to gain as much by it.

    Times are medians: a prompt, a slow consumer or another program does not move them.
    """

    costs: tuple[float, ...] | None
    """Of each drafter, for a token ahead: forwards of the target, which are then the unit of time."""

    _rests: deque[float] = attrs.field(factory=lambda: deque(maxlen=31), init=False)
    _costs: dict[int, deque[float]] = attrs.field(factory=dict, init=False)
    _tokens: float = attrs.field(default=1.0, init=False)
    _rows: float = attrs.field(default=1.0, init=False)
    _spent: float = attrs.field(default=0.0, init=False)
    _rounds: float = attrs.field(default=0.0, init=False)

    def rested(self, seconds: float) -> None:
        """A round took so many seconds besides its draft."""
        self._rests.append(seconds)

    def drafted(self, drafter: int, seconds: float, ahead: int) -> None:
        """A drafter took so many to guess *ahead* tokens ahead, in all rows that asked for it."""
        self._costs.setdefault(drafter, deque(maxlen=9)).append(seconds / ahead)

    def gained(self, tokens: int) -> None:
        """A row got so many tokens by a round."""
        self._tokens, self._rows = self._tokens * _FADE + tokens, self._rows * _FADE + 1

    def spent(self, seconds: float) -> None:
        """A round's drafters were to take so many."""
        self._spent, self._rounds = self._spent * _FADE + seconds, self._rounds * _FADE + 1

    def cost(self, drafter: int) -> float:
        """What a token ahead takes *drafter*; 0 as long as nobody knows."""
        if self.costs is not None:
            return self.costs[drafter]
        return statistics.median(self._costs.get(drafter, [0.0]))

    def price(self) -> float:
        """ρ: how many tokens a row gets in a unit of time; 0 as long as nobody knows."""
        rest = 1.0 if self.costs is not None else statistics.median(self._rests or [0.0])
        drafts = self._spent / self._rounds if self._rounds else 0.0
        return self._tokens / self._rows / (rest + drafts) if rest + drafts else 0.0
