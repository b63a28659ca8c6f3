"""Acceptance rate by the drafter's evidence."""

from collections.abc import Sequence

import attrs

from ...decoding.protocols import SpeculationStep

_STRONGEST = 16
"""Stronger evidence is counted with this."""

_PRIOR_WEIGHT = 3.0
"""Weight of the prior, in draft tokens."""


def prior_rate(evidence: int) -> float:
    """
    Acceptance rate before any observation: odds of an eighth of the squared match length.

    Lookups of matches in 40 texts of SmolLM2-135M gave 0.26, 0.54, 0.70, 0.75 after matches of 1 to 4
    tokens, and 0.96 after those of 12 and more. These are averages of texts that repeat themselves and of
    texts that do not, which must lose little: so less is expected until a text has shown more.

    >>> [round(prior_rate(length), 2) for length in (1, 2, 3, 4, 12)]
    [0.11, 0.33, 0.53, 0.67, 0.95]
    """
    return evidence**2 / (evidence**2 + 8)


@attrs.define(eq=False)
class EvidenceRates:
    """
    Acceptance rate of a draft token by the evidence for it, such as the length of the match before it.

    An accepted token extends the match: the one after it has evidence stronger by one. So one rate a
    strength describes drafts of every evidence and length.
    """

    memory: float
    """Observations of a strength after which one weighs 1/e."""

    _accepted: list[float] = attrs.field(init=False, factory=lambda: [0.0] * (_STRONGEST + 1))
    _verified: list[float] = attrs.field(init=False, factory=lambda: [0.0] * (_STRONGEST + 1))

    def learn(self, outcome: SpeculationStep) -> None:
        """Count the draft tokens of a step; those after a rejected one were not observed."""
        rows = zip(outcome.evidence or (), outcome.drafted, outcome.accepted, strict=True)
        for evidence, drafted, accepted in rows:
            for i in range(min(accepted + 1, drafted)):
                self._count(evidence + i, i < accepted)

    def learn_foreseen(self, outcome: SpeculationStep) -> None:
        """Count the first tokens of drafts that were not made, if they are known."""
        if outcome.foreseen is not None:
            for evidence, foreseen in zip(outcome.evidence or (), outcome.foreseen, strict=True):
                if evidence:
                    self._count(evidence, foreseen)

    def _count(self, evidence: int, accepted: bool) -> None:
        keep, slot = 1 - 1 / self.memory, min(evidence, _STRONGEST)
        self._verified[slot] = keep * self._verified[slot] + 1
        self._accepted[slot] = keep * self._accepted[slot] + accepted

    def rate(self, evidence: int) -> float:
        """Acceptance rate of a token with *evidence*."""
        slot = min(evidence, _STRONGEST)
        prior = _PRIOR_WEIGHT * prior_rate(slot)
        return (self._accepted[slot] + prior) / (self._verified[slot] + _PRIOR_WEIGHT)

    def accepted(self, evidence: Sequence[int], most: int) -> list[float]:
        """Expected accepted tokens of rows with this *evidence* together, at draft lengths 0 to *most*."""
        expected = [0.0] * (most + 1)
        for strength in filter(None, evidence):
            all_accepted, total = 1.0, 0.0
            for k in range(1, most + 1):
                all_accepted *= self.rate(strength + k - 1)
                total += all_accepted
                expected[k] += total
        return expected
