"""Scores by a function of one candidate."""

from collections.abc import Callable, Sequence

import attrs
from attrs import validators

from ..results.logprobs import Logprobs
from .candidates import Candidate


@attrs.frozen(eq=False)
class ScoredBy:
    """
    Score each candidate by itself, with a reward model for example.

    >>> ScoredBy(lambda candidate: -len(candidate.ids))([Candidate([1], [2, 3]), Candidate([1], [4])])
    [-2.0, -1.0]
    """

    function: Callable[[Candidate], float] = attrs.field(validator=validators.is_callable())
    """A candidate to its score."""

    logprobs: Logprobs | None = attrs.field(
        default=None, validator=validators.optional(validators.instance_of(Logprobs))
    )
    """The log-probabilities that it reads."""

    def __call__(self, candidates: Sequence[Candidate]) -> list[float]:
        """The score of each."""
        return [float(self.function(candidate)) for candidate in candidates]
