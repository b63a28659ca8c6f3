"""Majority vote among samples."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import attrs
from attrs import validators

from .candidates import Candidate


def whole_text(candidate: Candidate) -> Hashable:
    """The text without surrounding space, or the ids where there is no text."""
    return tuple(candidate.ids) if candidate.text is None else candidate.text.strip()


@attrs.frozen(eq=False)
class SelfConsistency:
    """
    Score each candidate by the share of candidates with the same answer.

    Wang et al., 2023, `Self-Consistency Improves Chain of Thought Reasoning in Language Models
    <https://arxiv.org/abs/2203.11171>`_, section 2: the unweighted vote. Of several answers with as many
    votes, the one that came first is chosen.

    >>> answers = SelfConsistency(key=lambda candidate: candidate.ids[-1])
    >>> answers([Candidate([1], [5, 7]), Candidate([1], [6, 8]), Candidate([1], [4, 8])])
    [0.3333333333333333, 0.6666666666666666, 0.6666666666666666]
    """

    key: Callable[[Candidate], Hashable] = attrs.field(default=whole_text, validator=validators.is_callable())
    """
    The answer of a candidate, for example the last number of its text; None for one without an answer, which
    has no vote and the score 0.
    """

    logprobs: None = attrs.field(default=None, init=False)
    """It reads none."""

    def __call__(self, candidates: Sequence[Candidate]) -> list[float]:
        """The share of votes for the answer of each."""
        answers = [self.key(candidate) for candidate in candidates]
        votes = Counter(answer for answer in answers if answer is not None)
        return [0.0 if answer is None else votes[answer] / len(candidates) for answer in answers]
