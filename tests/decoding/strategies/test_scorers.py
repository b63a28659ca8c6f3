"""Scores of candidates."""

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from decodekit.decoding import (
    LogLikelihood,
    Logprobs,
    MinimumBayesRisk,
    ScoredBy,
    SelfConsistency,
    TokenLogprob,
)
from decodekit.decoding.strategies.candidates import Candidate, Choice
from decodekit.decoding.strategies.minimum_bayes_risk import unigram_f1

IDS = st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=6)


def candidates(ids: list[list[int]], texts: list[str] | None = None) -> list[Candidate]:
    """Of one prompt."""
    return [Candidate([1], one, None if texts is None else texts[row]) for row, one in enumerate(ids)]


def scored(*logprobs: float) -> Candidate:
    """With these log-probabilities of its tokens."""
    tokens = [TokenLogprob(0, one, 1) for one in logprobs]
    return Candidate([1], [0] * len(tokens), logprobs=tokens)


def test_log_likelihood_by_length() -> None:
    """The mean of a token, the sum, and what lies between."""
    both = [scored(-1.0, -3.0, -2.0, -2.0), scored(-3.0)]

    assert [-2.0, -3.0] == LogLikelihood()(both)
    assert [-8.0, -3.0] == LogLikelihood(0)(both)
    assert [-4.0, -3.0] == LogLikelihood(0.5)(both)
    assert [-math.inf] == LogLikelihood()([scored()])
    assert Logprobs() == LogLikelihood().logprobs
    with pytest.raises(ValueError, match="must have log-probabilities"):
        LogLikelihood()(candidates([[1]]))


@given(IDS)
def test_self_consistency_is_the_share_of_the_same_answer(ids: list[list[int]]) -> None:
    """By counting; the choice is the first of the most frequent."""
    own = candidates(ids)
    scores = SelfConsistency()(own)
    count = Counter(map(tuple, ids))

    assert scores == [count[tuple(one)] / len(ids) for one in ids]
    best = Choice(tuple(own), tuple(scores)).chosen
    assert count[tuple(best.ids)] == max(count.values())
    assert own.index(best) == [count[tuple(one)] for one in ids].index(max(count.values()))


def test_answers_by_a_key() -> None:
    """Texts are compared without space around them; one without an answer has no vote."""
    texts = ["It is 7.", "7", "8 ", " 8", "no idea", "none"]
    own = candidates([[1]] * 6, texts)

    assert [1 / 6, 1 / 6, 2 / 6, 2 / 6, 1 / 6, 1 / 6] == SelfConsistency()(own)

    def number(candidate: Candidate) -> str | None:
        return next((one for one in str(candidate.text) if one.isdigit()), None)

    assert [2 / 6, 2 / 6, 2 / 6, 2 / 6, 0.0, 0.0] == SelfConsistency(number)(own)
    assert [0.0] == SelfConsistency(lambda candidate: None)(own[:1])


@given(IDS)
def test_minimum_bayes_risk_by_brute_force(ids: list[list[int]]) -> None:
    """The mean utility over all pairs, in the order hypothesis, reference."""

    def utility(hypothesis: Candidate, reference: Candidate) -> float:
        return float(2 * len(hypothesis.ids) - 3 * sum(reference.ids))

    scores = MinimumBayesRisk(utility)(candidates(ids))
    mean = sum(map(sum, ids)) / len(ids)

    assert scores == pytest.approx([2 * len(one) - 3 * mean for one in ids])


def test_unigram_f1() -> None:
    """Tokens count as often as both have them; two empty texts are equal."""
    a, b, empty = candidates([[1, 1, 2, 3], [1, 1, 1, 2], []])

    assert 0.75 == unigram_f1(a, b) == unigram_f1(b, a)
    assert 1.0 == unigram_f1(a, a) == unigram_f1(empty, empty)
    assert 0.0 == unigram_f1(a, empty)


def test_a_function_of_one() -> None:
    """Called once for each."""
    assert [3.0, 0.0] == ScoredBy(lambda candidate: sum(candidate.ids))(candidates([[1, 2], []]))
    assert Logprobs(top=2) == ScoredBy(len, Logprobs(top=2)).logprobs


def test_a_ranking() -> None:
    """The best first; of equals the one that came first."""
    own = tuple(candidates([[1], [2], [3], [4]]))
    choice = Choice(own, (0.0, 2.0, -math.inf, 2.0))

    assert 1 == choice.index
    assert [[2], [4], [1], [3]] == [candidate.ids for _, candidate in choice.ranked()]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: LogLikelihood(math.nan), ValueError),
        (lambda: LogLikelihood(400), ValueError),
        (lambda: LogLikelihood(-400), ValueError),
        (lambda: LogLikelihood(1, "raw"), TypeError),
        (lambda: ScoredBy(3), TypeError),
        (lambda: ScoredBy(len, "raw"), TypeError),
        (lambda: SelfConsistency(3), TypeError),
        (lambda: MinimumBayesRisk("f1"), TypeError),
    ],
)
def test_bad_parameters_are_refused(make: Any, error: type[Exception]) -> None:
    """When a scorer is built."""
    with pytest.raises(error):
        make()
