"""The result of a run of beams."""

import math

import attrs

from ...results.generation import Generation


@attrs.frozen(eq=False, repr=False, kw_only=True)
class BeamGeneration(Generation):
    """
    The collected result of a run of beams, sequence by sequence.

    The sequences of the first prompt come first, best first; then those of the second, and so on. A prompt
    has fewer than were asked for if no more are possible.
    """

    prompt_index: list[int]
    """The prompt of each sequence."""

    scores: list[float]
    """
    By which the sequences of a prompt are ordered, the largest first. Of a beam search: the sum of the
    tokens' scores, divided by ``length ** length_penalty``. Of stochastic beams: the perturbed
    log-probability.
    """

    token_scores: list[list[float]]
    """The log-probability of each new token after the processors, those of a beam search not renormalised."""

    @property
    def log_probabilities(self) -> list[float]:
        """The sum of each sequence's token scores."""
        return [math.fsum(scores) for scores in self.token_scores]

    def of_prompt(self, prompt: int) -> list[int]:
        """The indices of the sequences of *prompt*, best first."""
        return [index for index, owner in enumerate(self.prompt_index) if owner == prompt]
