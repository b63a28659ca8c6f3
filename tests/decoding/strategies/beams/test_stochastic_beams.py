"""Stochastic beams: their distribution, without replacement, and what their noise depends on."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding import BeamSearch, EndOfSequence, Generator, MaxNewTokens, StochasticBeams
from decodekit.decoding.strategies.beams.sampled_beams import _log1mexp
from decodekit.processors import PrefixFunction, Temperature, TopK
from decodekit.testing import whole_prefix

from .scripted import scripted

SMALL = torch.tensor(
    [[0.0, 1.0, -0.5], [0.7, -0.3, 0.2], [-0.4, 0.1, 0.9], [0.3, 0.3, -1.0], [1.2, 0.0, 0.4]]
)
STOP = EndOfSequence(2) | MaxNewTokens(2)
DRAWS = 4000


def distribution(prompt: list[int], temperature: float = 1.0) -> dict[tuple[int, ...], float]:
    """The log-probability of every sequence after *prompt*, ended by token 2 or after two tokens."""
    found: dict[tuple[int, ...], float] = {}
    going_on: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    while going_on:
        ids, total = going_on.pop()
        line = SMALL[whole_prefix([*prompt, *ids]) % len(SMALL)].double() / temperature
        for token, score in enumerate(line.log_softmax(dim=-1).tolist()):
            one = ((*ids, token), total + score)
            if token == 2 or len(one[0]) == 2:
                found[one[0]] = one[1]
            else:
                going_on.append(one)
    return found


def draws(beams: int, rows: int = 60, temperature: float = 1.0) -> list[list[tuple[tuple[int, ...], float]]]:
    """*DRAWS* samples after one prompt on different streams: sequences with their scores."""
    search = StochasticBeams(
        scripted(rows, copies=True, table=SMALL),
        beams=beams,
        seed=11,
        stop=STOP,
        processors=Temperature(temperature),
    )
    result = search([[0]] * DRAWS)
    found: list[list[tuple[tuple[int, ...], float]]] = [[] for _ in range(DRAWS)]
    for row, number in enumerate(result.prompt_index):
        found[number].append((tuple(result.ids[row]), result.scores[row]))
    return found


@pytest.fixture(scope="module")
def triples() -> list[list[tuple[tuple[int, ...], float]]]:
    """Three different sequences of seven, many times."""
    return draws(3)


class TestDistribution:
    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_is_that_of_drawing_without_replacement(
        self, count: int, triples: list[list[tuple[tuple[int, ...], float]]]
    ) -> None:
        """
        Every ordered choice of one, two and three sequences, by its exact probability.

        The count of a choice is binomial: within 5 standard deviations, and 10 counts for the skew of rare
        ones (Bernstein: above 5σ + 25/3 with a probability below exp(-25/2) = 4e-6; 210 choices at most).
        """
        exact = distribution([0])
        seen = Counter(tuple(ids for ids, _ in one[:count]) for one in triples)
        mass = 0.0
        for choice in itertools.permutations(exact, count):
            left, probability = 1.0, 1.0
            for ids in choice:
                probability *= math.exp(exact[ids]) / left
                left -= math.exp(exact[ids])
            mass += probability
            bound = 5 * math.sqrt(DRAWS * probability * (1 - probability)) + 25 / 3

            assert abs(seen[choice] - DRAWS * probability) <= bound, choice
        assert mass == pytest.approx(1.0)

    def test_is_that_of_the_processed_logits(self) -> None:
        """At a temperature of 2, the first sequence is a sample at that temperature; bound as above."""
        exact = distribution([0], temperature=2.0)
        seen = Counter(one[0][0] for one in draws(1, temperature=2.0))
        for ids, log_probability in exact.items():
            probability = math.exp(log_probability)
            bound = 5 * math.sqrt(DRAWS * probability * (1 - probability)) + 25 / 3

            assert abs(seen[ids] - DRAWS * probability) <= bound

    def test_gives_importance_weights(self, triples: list[list[tuple[tuple[int, ...], float]]]) -> None:
        """
        With the last score as the threshold, weights p / q of the others estimate expectations without bias.

        As in the paper's section 4.2, of the length of a sequence; within 5 standard errors of the mean.
        """
        exact = distribution([0])
        estimates = []
        for *drawn, (_, threshold) in triples:
            above = [1 - math.exp(-math.exp(exact[ids] - threshold)) for ids, _ in drawn]
            weights = [math.exp(exact[ids]) / q for (ids, _), q in zip(drawn, above, strict=True)]
            estimates.append(sum(w * len(ids) for w, (ids, _) in zip(weights, drawn, strict=True)))
        expected = sum(math.exp(p) * len(ids) for ids, p in exact.items())
        estimate = torch.tensor(estimates, dtype=torch.float64)

        assert abs(estimate.mean() - expected) <= 5 * estimate.std() / math.sqrt(DRAWS)


class TestSample:
    @given(
        prompts=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=12), min_size=1, max_size=4),
        beams=st.integers(1, 4),
        copies=st.booleans(),
        seed=st.integers(-(2**70), 2**70),
    )
    def test_depends_on_prompt_stream_and_seed_alone(
        self, prompts: list[list[int]], beams: int, copies: bool, seed: int
    ) -> None:
        """Not on neighbours, turns or placement."""
        options: Any = {"beams": beams, "seed": seed, "stop": EndOfSequence([2, 5]) | MaxNewTokens(6)}
        streams = [7 * number for number in range(len(prompts))]
        together = StochasticBeams(scripted(9, copies), **options)(prompts, random_streams=streams)
        for number, prompt in enumerate(prompts):
            alone = StochasticBeams(scripted(beams), **options)(prompt, random_streams=[7 * number])
            own = together.of_prompt(number)

            assert alone.ids == [together.ids[row] for row in own]
            assert alone.scores == [together.scores[row] for row in own]

    @given(beams=st.integers(1, 7), prompt=st.lists(st.integers(0, 6), min_size=1, max_size=5))
    def test_of_fewer_beams_is_the_first_of_more(self, beams: int, prompt: list[int]) -> None:
        """With the same seed and stream, as the paper's top-down sampling says."""
        stop = EndOfSequence([2, 5]) | MaxNewTokens(6)
        few = StochasticBeams(scripted(8), beams=beams, seed=1, stop=stop)(prompt)
        more = StochasticBeams(scripted(8), beams=beams + 1, seed=1, stop=stop)(prompt)

        assert few.ids == more.ids[:beams]
        assert few.scores == pytest.approx(more.scores[:beams])

    def test_has_no_sequence_twice(self) -> None:
        """All sequences where there are fewer than beams; each with its log-probability."""
        exact = distribution([0])
        result = StochasticBeams(scripted(12, table=SMALL), beams=12, stop=STOP, seed=5)([0])

        assert set(exact) == {tuple(ids) for ids in result.ids}
        assert len(exact) == len(result.ids) == 7
        assert [exact[tuple(ids)] for ids in result.ids] == pytest.approx(result.log_probabilities, abs=1e-6)
        assert result.scores == sorted(result.scores, reverse=True)

    def test_is_renormalised(self) -> None:
        """After a top-k the log-probabilities are those of the survivors."""
        search = StochasticBeams(
            scripted(4, table=SMALL), beams=4, stop=MaxNewTokens(2), seed=5, processors=TopK(2)
        )
        result = search([0])

        assert 4 == len(result.ids)
        assert sum(map(math.exp, result.log_probabilities)) == pytest.approx(1.0)

    def test_differs_by_call_unless_seeded(self) -> None:
        """The result reports the seed, which gives the same sample again."""
        search = StochasticBeams(scripted(4), beams=4, stop=MaxNewTokens(8))
        first, second = search([1, 2]), search([1, 2])

        assert first.seed != second.seed
        assert first.ids != second.ids
        again = StochasticBeams(scripted(4), beams=4, stop=MaxNewTokens(8), seed=first.seed)([1, 2])

        assert first.ids == again.ids
        assert first.scores == again.scores
        assert 4 == len({tuple(ids) for ids in first.ids})

    def test_of_a_cold_model_is_the_best_beam(self) -> None:
        """Nearly greedy: one beam is the greedy sequence."""
        cold = StochasticBeams(
            scripted(1), beams=1, processors=Temperature(1e-4), stop=MaxNewTokens(9), seed=2
        )

        assert Generator(scripted(1), stop=MaxNewTokens(9))([4]).ids == cold([4]).ids

    def test_keeps_a_sequence_without_a_next_token(self) -> None:
        """As one that has ended, with the reason; also where that is the first token."""

        def allowed(row: int, prefix: Tensor) -> Sequence[int]:
            return [1, 3] if len(prefix) == 1 else [] if int(prefix[-1]) == 1 else [4, 5]

        search = StochasticBeams(
            scripted(6), beams=6, processors=PrefixFunction(allowed), stop=MaxNewTokens(2), seed=3
        )
        result = search([4])
        reasons = {tuple(ids): reason for ids, reason in zip(result.ids, result.finish_reasons, strict=True)}

        assert {(1,): "no_token_left", (3, 4): "max_new_tokens", (3, 5): "max_new_tokens"} == reasons
        assert sum(map(math.exp, result.log_probabilities)) == pytest.approx(1.0)
        nothing = StochasticBeams(scripted(2), beams=2, processors=PrefixFunction(lambda row, ids: []))([1])

        assert [[]] == nothing.ids
        assert [0.0] == nothing.scores

    def test_feeds_as_beam_search(self) -> None:
        """With rows copied, the prompt once and then at most one token a beam."""
        result = StochasticBeams(scripted(4, copies=True), beams=4, stop=MaxNewTokens(6), seed=0)([1, 2, 3])
        best = BeamSearch(scripted(4, copies=True), beams=4, stop=MaxNewTokens(6))([1, 2, 3])

        assert 3 + 5 * 4 == result.statistics.tokens_fed == best.statistics.tokens_fed
        assert result.statistics.forwards == best.statistics.forwards


def test_the_logarithm_of_one_minus_an_exponential() -> None:
    """Over the whole range, to the last bits."""
    x = torch.tensor([0.0, -1e-12, -0.5, -0.693, -0.7, -40.0, -torch.inf], dtype=torch.float64)
    expected = [
        -math.inf,
        *(math.log(-math.expm1(value)) for value in x.tolist()[1:5]),
        -math.exp(-40.0),
        0.0,
    ]

    assert expected == pytest.approx(_log1mexp(x).tolist(), rel=1e-12)


def test_a_seed_is_a_whole_number() -> None:
    """Anything else is refused; so are more beams than rows."""
    with pytest.raises(TypeError, match=r"'seed' must be a whole number: got 0\.5"):
        StochasticBeams(scripted(2), beams=2, seed=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'beams' must be at most 2"):
        StochasticBeams(scripted(2), beams=3)
