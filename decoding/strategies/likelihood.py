"""Scores by log-likelihood."""

import math
from collections.abc import Sequence

import attrs
from attrs import validators

from ..results.logprobs import Logprobs
from ..validation import as_real, one_real
from .candidates import Candidate


@attrs.frozen(eq=False)
class LogLikelihood:
    """
    Score each candidate by its log-probability, divided by ``length ** length_penalty``.

    The length counts the new tokens, an end of sequence included. A candidate without tokens has ``-inf``.
    """

    length_penalty: float = attrs.field(
        default=1.0, converter=as_real, validator=one_real("from -32 to 32", lambda value: abs(value) <= 32)
    )
    """1 for the mean of a token, 0 for the sum, which favours short texts; -32 to 32."""

    logprobs: Logprobs = attrs.field(factory=Logprobs, validator=validators.instance_of(Logprobs))
    """Which log-probabilities: the decoder's own, or those after a stage of the chain."""

    def __call__(self, candidates: Sequence[Candidate]) -> list[float]:
        """The score of each."""
        return [self._score(candidate) for candidate in candidates]

    def _score(self, candidate: Candidate) -> float:
        if candidate.logprobs is None:
            raise ValueError("candidates must have log-probabilities: got one without")
        if not candidate.logprobs:
            return -math.inf
        total = math.fsum(token.logprob for token in candidate.logprobs)
        return float(total / len(candidate.logprobs) ** self.length_penalty)
