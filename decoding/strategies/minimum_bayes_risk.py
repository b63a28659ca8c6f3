"""Minimum Bayes risk decoding."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import attrs
from attrs import validators

from .candidates import Candidate


def unigram_f1(hypothesis: Candidate, reference: Candidate) -> float:
    """
    The F1 score of the tokens that both have, each as often as both have it; 1 if both are empty.

    >>> unigram_f1(Candidate([1], [2, 2, 3]), Candidate([1], [2, 4, 5]))
    0.3333333333333333
    """
    both = len(hypothesis.ids) + len(reference.ids)
    if not both:
        return 1.0
    return 2 * sum((Counter(hypothesis.ids) & Counter(reference.ids)).values()) / both


@attrs.frozen(eq=False)
class MinimumBayesRisk:
    """
    Score each candidate by its mean utility with every candidate as the reference.

    Eikema and Aziz, 2020, `Is MAP Decoding All You Need? The Inadequacy of the Mode in Neural Machine
    Translation <https://arxiv.org/abs/2005.10283>`_, equation 4, where the samples are the hypotheses too.
    Takes n² utilities for n samples.

    >>> risk = MinimumBayesRisk()
    >>> risk([Candidate([1], [2, 3]), Candidate([1], [2, 3]), Candidate([1], [4, 4])])
    [0.6666666666666666, 0.6666666666666666, 0.3333333333333333]
    """

    utility: Callable[[Candidate, Candidate], float] = attrs.field(
        default=unigram_f1, validator=validators.is_callable()
    )
    """Of a hypothesis, given a reference; larger is better. For texts for example chrF, BLEU or METEOR."""

    logprobs: None = attrs.field(default=None, init=False)
    """It reads none."""

    def __call__(self, candidates: Sequence[Candidate]) -> list[float]:
        """The expected utility of each."""
        return [
            math.fsum(self.utility(hypothesis, reference) for reference in candidates) / len(candidates)
            for hypothesis in candidates
        ]
