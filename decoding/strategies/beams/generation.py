"""The result of a run of beams."""

import math
from collections.abc import Sequence

import attrs

from ...results.generation import Generation
from ...results.statistics import Statistics
from .beam import Hypothesis


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


def collect_beams(
    prompts: Sequence[list[int]],
    found: Sequence[Sequence[Hypothesis]],
    texts: list[str] | None,
    statistics: Statistics,
    seed: int,
) -> BeamGeneration:
    """
    The result of a run.

    Args:
        prompts: The ids of each prompt.

        found: The sequences of each prompt, best first.

        texts: The text of each sequence, prompt by prompt; None without a tokenizer.

        statistics: Of the run.

        seed: Of its random streams.
    """
    sequences = [(number, one) for number, own in enumerate(found) for one in own]
    return BeamGeneration(
        prompts=[prompts[number] for number, _ in sequences],
        ids=[one.ids for _, one in sequences],
        text=texts,
        finishes=[one.finish for _, one in sequences],
        statistics=statistics,
        seed=seed,
        prompt_index=[number for number, _ in sequences],
        scores=[one.score for _, one in sequences],
        token_scores=[[beam.token_score for beam in one.beam.tokens()] for _, one in sequences],
    )
