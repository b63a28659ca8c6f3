"""Samples of one prompt, their scores, and the choice among them."""

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import attrs

from ..protocols import Finish
from ..results.generation import Generation
from ..results.logprobs import Logprobs, TokenLogprob
from ..results.statistics import Statistics


@attrs.frozen(eq=False)
class Candidate:
    """One sample of a prompt."""

    prompt: list[int]
    ids: list[int]
    """New tokens only."""

    text: str | None = None
    """The new text; None without a tokenizer."""

    finish: Finish | None = None
    """Why it ended."""

    logprobs: list[TokenLogprob] | None = None
    """One for each of the new tokens; None unless the scorer asks for them."""


@runtime_checkable
class Scorer(Protocol):
    """Scores the candidates of one prompt; the best has the largest score."""

    @property
    def logprobs(self) -> Logprobs | None:
        """The log-probabilities that it reads; None for none."""

    def __call__(self, candidates: Sequence[Candidate]) -> Sequence[float]:
        """A score for each; NaN is taken as ``-inf``."""


@attrs.frozen(eq=False)
class Choice:
    """The choice among the candidates of one prompt."""

    candidates: tuple[Candidate, ...]
    """In the order of their random streams."""

    scores: tuple[float, ...]
    """One for each."""

    @property
    def index(self) -> int:
        """The index of the chosen candidate: of the largest score, and the first of these."""
        return max(range(len(self.scores)), key=self.scores.__getitem__)

    @property
    def chosen(self) -> Candidate:
        """The candidate of the largest score."""
        return self.candidates[self.index]

    def ranked(self) -> list[tuple[float, Candidate]]:
        """Scores and candidates, the best first."""
        order = sorted(range(len(self.scores)), key=lambda number: (-self.scores[number], number))
        return [(self.scores[number], self.candidates[number]) for number in order]


@attrs.frozen(eq=False)
class Choices:
    """The result of a fold over samples, prompt by prompt."""

    choices: list[Choice]
    statistics: Statistics
    """Of all samples together."""

    seed: int | None = None
    """
    That of the random streams, as in a :class:`~..results.generation.Generation`. None where each prompt has
    another: several prompts of a ``Batched`` source whose sampler has no seed.
    """

    @property
    def ids(self) -> list[list[int]]:
        """The chosen new tokens of each prompt."""
        return [choice.chosen.ids for choice in self.choices]

    @property
    def text(self) -> list[str] | None:
        """The chosen text of each prompt; None without a tokenizer."""
        texts = [choice.chosen.text for choice in self.choices]
        known = [text for text in texts if text is not None]
        return known if len(known) == len(texts) else None

    @property
    def finishes(self) -> list[Finish | None]:
        """Why the chosen candidate of each prompt ended."""
        return [choice.chosen.finish for choice in self.choices]


def choices_of(generation: Generation, num_samples: int, scorer: Scorer) -> Choices:
    """
    The choice for each prompt.

    Args:
        generation: Its rows are prompt-major: sample *s* of prompt *p* is row ``p * num_samples + s``.

        num_samples: Samples of each prompt.

        scorer: Scores the samples of a prompt.

    Raises:
        ValueError: The scorer gave another number of scores.
    """
    candidates = _candidates(generation)
    choices = []
    for first in range(0, len(candidates), num_samples):
        own = candidates[first : first + num_samples]
        scores = tuple(float(score) for score in scorer(own))
        if len(scores) != len(own):
            raise ValueError(f"a scorer must give {len(own)} scores, one for each sample: got {len(scores)}")
        choices.append(Choice(own, tuple(-math.inf if math.isnan(score) else score for score in scores)))
    return Choices(choices, generation.statistics, generation.seed)


def _candidates(generation: Generation) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(
            generation.prompts[row],
            ids,
            None if generation.text is None else generation.text[row],
            generation.finishes[row],
            None if generation.logprobs is None else generation.logprobs[row],
        )
        for row, ids in enumerate(generation.ids)
    )
