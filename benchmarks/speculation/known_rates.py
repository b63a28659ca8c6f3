"""A draft length that knows the acceptance rates of an answer before it begins."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Self

import attrs

from ...decoding import SpeculationStep
from ...speculation.draft_length.evidence_rates import EvidenceRates
from .replay import RecordedDraft

_TIMES = 10
"""How often each draft is learned, so that the prior weighs little."""


@attrs.frozen(eq=False)
class KnownRates:
    """
    The length of the most expected tokens a second, by the acceptance rates of one answer.

    A policy has to learn these rates, and to lose little until it has: what this one does not reach is not
    for want of learning. It asks for evidence in every step.
    """

    most: int
    """The longest draft."""

    _rates: EvidenceRates

    _seconds: tuple[float, ...]
    """Of a step by draft length, from 0."""

    @classmethod
    def of(
        cls, drafts: list[RecordedDraft], forward_seconds: Mapping[int, float], other_seconds: float
    ) -> Self:
        """
        Learn from all drafts of an answer.

        Args:
            drafts: As long as the longest width scores.

            forward_seconds: Seconds of a forward by the most tokens that it feeds, ascending.

            other_seconds: Seconds of a step outside the forward.
        """
        rates = EvidenceRates(math.inf)
        for draft in drafts * _TIMES:
            if draft.evidence is not None:
                made = (draft.drafted, (draft.drafted,), (draft.agreed,))
                rates.learn(SpeculationStep(*made, 0.0, 0.0, 0.0, (draft.evidence,)))
        most = max(forward_seconds) - 1
        forwards = [
            next(spent for tokens, spent in forward_seconds.items() if tokens > length)
            for length in range(most + 1)
        ]
        drafting = statistics.median(draft.seconds for draft in drafts) if drafts else 0.0
        seconds = (
            spent + other_seconds + (drafting if length else 0.0) for length, spent in enumerate(forwards)
        )
        return cls(most, rates, tuple(seconds))

    def __call__(self, rows: int) -> int:
        """The longest draft: without evidence nothing is known of it."""
        return self.most

    def weigh(self, evidence: Sequence[int]) -> list[int]:
        """The draft length of one row."""
        (strength,) = evidence
        accepted = self._rates.accepted(strength, self.most)
        speeds = [(1 + gain) / spent for gain, spent in zip(accepted, self._seconds, strict=True)]
        return [speeds.index(max(speeds))]

    def learn(self, outcome: SpeculationStep) -> None:
        """Learn nothing more."""
