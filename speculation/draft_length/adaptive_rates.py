"""How often guesses are made, and how often they stand."""

import attrs

from ...decoding.protocols import SpeculationStep

_EXPECTATION_WEIGHT = 2.0
"""How many guesses an expectation weighs as much as."""


@attrs.define(eq=False)
class GuessRates:
    """
    Of past drafts, position by position: whether there was a guess, and whether it stood.

    Both are conditional: whether one stands is seen where those before it stood, and whether
    one is made where those before it were made. What lies behind a rejected guess, or beyond
    the length that was allowed, was not seen and says nothing; there the rate of the position
    before goes on.
    """

    most: int
    """Positions."""

    expected: float
    """The rate at which guesses are taken to stand before any was seen."""

    memory: float
    """After how many rounds what was seen weighs 1/e."""

    _stood: list[float] = attrs.field(init=False)
    _judged: list[float] = attrs.field(init=False)
    _made: list[float] = attrs.field(init=False)
    _asked: list[float] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Nothing was seen."""
        self._forget()

    def learn(self, outcome: SpeculationStep) -> None:
        """Count the drafts of a round."""
        keep = 1 - 1 / self.memory
        for counts in (self._stood, self._judged, self._made, self._asked):
            counts[:] = [keep * count for count in counts]
        for drafted, accepted in zip(outcome.drafted, outcome.accepted, strict=True):
            # The first that is missing was asked for, and the first that fell was judged.
            for i in range(min(drafted + 1, outcome.allowed, self.most)):
                self._asked[i] += 1
                self._made[i] += i < drafted
            for i in range(min(accepted + 1, drafted, self.most)):
                self._judged[i] += 1
                self._stood[i] += i < accepted

    def lapse(self) -> None:
        """What was seen is of a while ago: expect it to go on, but on little evidence."""
        if self.most:
            self.expected = self.standing()[0]
        self._forget()

    def standing(self) -> list[float]:
        """The share of guesses that stands where those before it stood, by position."""
        rates, rate = [], self.expected
        for stood, judged in zip(self._stood, self._judged, strict=True):
            rate = (stood + _EXPECTATION_WEIGHT * rate) / (judged + _EXPECTATION_WEIGHT)
            rates.append(rate)
        return rates

    def made(self) -> list[float]:
        """The share of guesses that is made where those before it were made, by position."""
        # One that was never asked for is taken to be made.
        return [(made + 1) / (asked + 1) for made, asked in zip(self._made, self._asked, strict=True)]

    def _forget(self) -> None:
        self._stood, self._judged = [0.0] * self.most, [0.0] * self.most
        self._made, self._asked = [0.0] * self.most, [0.0] * self.most
