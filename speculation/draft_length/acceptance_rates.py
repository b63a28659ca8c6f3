"""Acceptance and drafting rates by position."""

import attrs

from ...decoding.protocols import SpeculationStep

_EXPECTATION_WEIGHT = 2.0
"""Weight of the prior, in draft tokens."""


@attrs.define(eq=False)
class AcceptanceRates:
    """
    Per position of past drafts: whether there was a draft token, and whether it was accepted.

    Both are conditional on the positions before: acceptance on their acceptance, drafting on
    their being drafted. Positions after a rejected token, or beyond the allowed length, are
    unobserved and are not counted; they take the rate of the position before.
    """

    most: int
    """Number of positions."""

    expected: float
    """Prior acceptance rate."""

    memory: float
    """Speculation steps after which an observation weighs 1/e."""

    _accepted: list[float] = attrs.field(init=False)
    _verified: list[float] = attrs.field(init=False)
    _drafted: list[float] = attrs.field(init=False)
    _requested: list[float] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Start without observations."""
        self._forget()

    def learn(self, outcome: SpeculationStep) -> None:
        """Count the drafts of a speculation step."""
        catching_up = outcome.catching_up or (False,) * len(outcome.drafted)
        rows = [
            (drafted, accepted)
            for drafted, accepted, late in zip(outcome.drafted, outcome.accepted, catching_up, strict=True)
            # An empty draft during the catch-up says nothing of the drafter.
            if drafted or not late
        ]
        if not rows:
            return
        keep = 1 - 1 / self.memory
        for counts in (self._accepted, self._verified, self._drafted, self._requested):
            counts[:] = [keep * count for count in counts]
        for drafted, accepted in rows:
            # The first missing token was requested, and the first rejected one was verified.
            for i in range(min(drafted + 1, outcome.allowed, self.most)):
                self._requested[i] += 1
                self._drafted[i] += i < drafted
            for i in range(min(accepted + 1, drafted, self.most)):
                self._verified[i] += 1
                self._accepted[i] += i < accepted

    def lapse(self) -> None:
        """Reduce old observations to a prior with little weight."""
        if self.most:
            self.expected = self.acceptance()[0]
        self._forget()

    def acceptance(self) -> list[float]:
        """Acceptance rate by position, given that those before it were accepted."""
        rates, rate = [], self.expected
        for accepted, verified in zip(self._accepted, self._verified, strict=True):
            rate = (accepted + _EXPECTATION_WEIGHT * rate) / (verified + _EXPECTATION_WEIGHT)
            rates.append(rate)
        return rates

    def draft_rates(self) -> list[float]:
        """Drafting rate by position, given that those before it were drafted."""
        # Prior: a token that was never requested would be drafted.
        counts = zip(self._drafted, self._requested, strict=True)
        return [(drafted + 1) / (requested + 1) for drafted, requested in counts]

    def _forget(self) -> None:
        self._accepted, self._verified = [0.0] * self.most, [0.0] * self.most
        self._drafted, self._requested = [0.0] * self.most, [0.0] * self.most
