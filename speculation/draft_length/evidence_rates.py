"""Acceptance rate by the drafter's evidence."""

import attrs

from ...decoding.protocols import SpeculationStep

_STRONGEST = 16
"""Stronger evidence is counted with this."""

_PRIOR_WEIGHT = 3.0
"""Weight of the prior, in draft tokens."""


def prior_rate(evidence: int) -> float:
    """
    Acceptance rate before any observation: odds of a twelfth of the squared evidence.

    Lookups in 40 texts of SmolLM2-135M gave 0.15, 0.31, 0.48, 0.62, 0.74 at evidence of 1 to 5
    (:func:`~..drafters.repeated_suffix.match_evidence`), and 0.97 at 16 and more: odds of a tenth. These are
    averages of texts that repeat themselves and of texts that do not, which must lose little: so less is
    expected until a text has shown more.

    >>> [round(prior_rate(evidence), 2) for evidence in (1, 2, 3, 4, 5, 16)]
    [0.08, 0.25, 0.43, 0.57, 0.68, 0.96]
    """
    return evidence**2 / (evidence**2 + 12)


@attrs.define(eq=False)
class EvidenceRates:
    """
    Acceptance rate of a draft token by the evidence for it.

    An accepted token extends the match: the one after it is counted as having evidence stronger by one. So
    one rate a strength describes drafts of every evidence and length.
    """

    memory: float
    """Observations of a strength after which one weighs 1/e."""

    _accepted: list[float] = attrs.field(init=False, factory=lambda: [0.0] * (_STRONGEST + 1))
    _verified: list[float] = attrs.field(init=False, factory=lambda: [0.0] * (_STRONGEST + 1))

    def learn(self, outcome: SpeculationStep) -> None:
        """
        Count the draft tokens of a step; those after a rejected one were not observed.

        Of drafts that were not made, the first tokens are counted, if they are known.
        """
        if outcome.evidence is None:
            return
        rows = zip(outcome.evidence, outcome.drafted, outcome.accepted, strict=True)
        for row, (evidence, drafted, accepted) in enumerate(rows):
            for i in range(min(accepted + 1, drafted)):
                self._count(evidence + i, i < accepted)
            if evidence and not drafted and outcome.foreseen is not None:
                self._count(evidence, outcome.foreseen[row])

    def _count(self, evidence: int, accepted: bool) -> None:
        keep, slot = 1 - 1 / self.memory, min(evidence, _STRONGEST)
        self._verified[slot] = keep * self._verified[slot] + 1
        self._accepted[slot] = keep * self._accepted[slot] + accepted

    def rate(self, evidence: int) -> float:
        """Acceptance rate of a token with *evidence*."""
        slot = min(evidence, _STRONGEST)
        prior = _PRIOR_WEIGHT * prior_rate(slot)
        return (self._accepted[slot] + prior) / (self._verified[slot] + _PRIOR_WEIGHT)

    def accepted(self, evidence: int, most: int) -> list[float]:
        """Expected accepted tokens of a row with this *evidence*, at draft lengths 0 to *most*; 0 without."""
        expected, all_accepted = [0.0], 1.0
        for k in range(most):
            all_accepted *= self.rate(evidence + k) if evidence else 0.0
            expected.append(expected[-1] + all_accepted)
        return expected
