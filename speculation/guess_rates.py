"""How often guesses are made, and how often they stand."""

import attrs

from ..decoding.protocols import Round

_PRIOR_ROUNDS = 2.0
"""How many guesses an expectation weighs as much as."""


@attrs.define(eq=False)
class GuessRates:
    """
    Of past drafts, position by position: whether there was a guess, and whether it stood.

    Both are conditional: a guess counts at position *i* where those before it stood, and is
    missed there where those before it were made. What lies behind a rejected guess, or beyond
    the length that was allowed, was not seen and says nothing. So there the rate of the
    position before goes on.
    """

    most: int
    """Positions."""

    expected: float
    """The rate at which guesses stand before anything was seen."""

    memory: float
    """After how many rounds what was seen weighs 1/e."""

    _stood: list[float] = attrs.field(init=False)
    _judged: list[float] = attrs.field(init=False)
    _made: list[float] = attrs.field(init=False)
    _asked: list[float] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Nothing was seen."""
        self._forget_judgements()
        self._made, self._asked = [0.0] * self.most, [0.0] * self.most

    def learn(self, outcome: Round) -> None:
        """Count a round of drafts."""
        keep = 1.0 - 1.0 / self.memory
        for counts in (self._stood, self._judged, self._made, self._asked):
            counts[:] = [keep * count for count in counts]
        for drafted, accepted in zip(outcome.drafted, outcome.accepted, strict=True):
            # The first that was missing was asked for, the first that was rejected was judged.
            for i in range(min(drafted + 1, outcome.allowed, self.most)):
                self._asked[i] += 1
                self._made[i] += i < drafted
            for i in range(min(accepted + 1, drafted, self.most)):
                self._judged[i] += 1
                self._stood[i] += i < accepted

    def lapse(self) -> None:
        """Trust what was seen no more than an expectation: it is of a while ago."""
        if self.most:
            self.expected = self.standing()[0]
        self._forget_judgements()

    def standing(self) -> list[float]:
        """Of the guesses whose predecessors stood, the share that stands, by position."""
        rates, rate = [], self.expected
        for stood, judged in zip(self._stood, self._judged, strict=True):
            rate = (stood + _PRIOR_ROUNDS * rate) / (judged + _PRIOR_ROUNDS)
            rates.append(rate)
        return rates

    def made(self) -> list[float]:
        """Of the guesses whose predecessors were made, the share that is made, by position."""
        # One who guesses at all is taken to guess on.
        return [(made + 1) / (asked + 1) for made, asked in zip(self._made, self._asked, strict=True)]

    def _forget_judgements(self) -> None:
        self._stood, self._judged = [0.0] * self.most, [0.0] * self.most
