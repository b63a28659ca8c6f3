"""The distribution of speculation equals the chain rule's, for all combinations of parts."""

import itertools
import math
import random
from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch import Tensor

from decodekit.decoding import (
    Draft,
    DraftLength,
    EndOfSequence,
    ExactMatch,
    Generator,
    Greedy,
    History,
    MaxNewTokens,
    Sample,
    StopTokens,
)
from decodekit.decoding.protocols import Drafter, Processor, Sampler, StopCondition, Verification
from decodekit.decoding.sampling import noise
from decodekit.decoding.scores import Scores
from decodekit.processors import (
    XTC,
    Chain,
    FrequencyPenalty,
    Grammar,
    MinNewTokens,
    NoRepeatNgram,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)
from decodekit.speculation import (
    BlockVerification,
    DraftModel,
    DraftTree,
    ForcedTokens,
    Mixture,
    PromptLookup,
    RejectionSampling,
    SpeculativeGenerator,
    SuffixAutomaton,
    Tree,
)
from decodekit.speculation.exactness.exactness_check import (
    chain_rule,
    check_exactness,
    output_distribution,
    total_variation,
)
from decodekit.testing import ScriptedDecoder, whole_prefix

from ...processors.grammar.languages import Brackets
from ..worlds import (
    ByTurns,
    Ends,
    Garbage,
    LeastLikely,
    NoneAfter,
    OneAfter,
    OneMoreThanAccepted,
    scripted,
    table,
)

VERIFICATIONS: dict[str, Verification] = {
    "exact_match": ExactMatch(),
    "rejection": RejectionSampling(),
    "block": BlockVerification(),
}

DRAFTERS: dict[str, Callable[[int, int], Drafter]] = {
    "other": lambda seed, vocab: DraftModel(scripted(seed + 1, vocab)),
    "same": lambda seed, vocab: DraftModel(scripted(seed, vocab)),
    "lookup": lambda seed, vocab: PromptLookup(),
    "garbage": lambda seed, vocab: Garbage(),
    "wrong": lambda seed, vocab: LeastLikely(table(seed, vocab)),
    "by turns": lambda seed, vocab: ByTurns(DraftModel(scripted(seed + 1, vocab)), PromptLookup()),
}

CHAINS: dict[str, Processor | None] = {
    "none": None,
    "temperature": Temperature(0.6),
    "truncation": Temperature(1.5) | TopK(2) | TopP(0.8),
    "penalties": RepetitionPenalty(1.4) | FrequencyPenalty(0.5),
    "no-repeat": NoRepeatNgram(2),
    "xtc": XTC(0.4, 0.25),
    "one-token": OneAfter(),
    "no-token": NoneAfter(),
}

STOPS: dict[str, tuple[StopCondition, Processor | None]] = {
    "three": (MaxNewTokens(3), None),
    "end": (EndOfSequence(0) | MaxNewTokens(3), None),
    "tokens": (StopTokens([1, 2]) | MaxNewTokens(3), None),
    "at-least": (EndOfSequence(0) | MaxNewTokens(3), MinNewTokens(2, [0])),
    "pair": (Ends(2), None),
    "positions": (MaxNewTokens(9), None),
}

LENGTHS: dict[str, Callable[[], int | DraftLength]] = {
    "1": lambda: 1,
    "2": lambda: 2,
    "3": lambda: 3,
    "learns": OneMoreThanAccepted,
}


def world(
    drafter: str,
    verification: str,
    chain: str,
    length: str,
    stop: str,
    prompts: list[list[int]],
    seed: int = 1,
    vocab: int | None = None,
) -> Callable[[], Generator]:
    """Factory of a case's generator."""
    vocab = vocab or (3 if chain in ("truncation", "one-token") else 2)
    condition, minimum = STOPS[stop]
    chains = [processor for processor in (minimum, CHAINS[chain]) if processor is not None]
    capacity = max(map(len, prompts)) + 2 if stop == "positions" else 16
    target, ahead = scripted(seed, vocab, max_length=capacity), DRAFTERS[drafter](seed, vocab)

    def make() -> Generator:
        return SpeculativeGenerator(
            target,
            ahead,
            verification=VERIFICATIONS[verification],
            processors=Chain(chains),
            num_draft_tokens=LENGTHS[length](),
            stop=condition,
            sampler=Sample(seed=0),
        )

    return make


DICE = random.Random(2)
CASES = [
    (*names, DICE.choice(list(LENGTHS)), DICE.choice(list(STOPS)))
    for names in itertools.product(DRAFTERS, VERIFICATIONS, CHAINS)
]


def test_every_pair_is_among_the_cases() -> None:
    """All pairs of drafters, verifications, chains, lengths and stops."""
    axes = (DRAFTERS, VERIFICATIONS, CHAINS, LENGTHS, STOPS)
    for (i, first), (j, second) in itertools.combinations(enumerate(axes), 2):
        assert set(itertools.product(first, second)) == {(case[i], case[j]) for case in CASES}


def copies(length: str) -> int:
    """Number of paths per batch; 1 where statistics would be shared between paths."""
    return 1 if length == "learns" else 32


@pytest.mark.mostly_slow(every=6)
@pytest.mark.parametrize("verification", VERIFICATIONS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_one_row(drafter: str, verification: str) -> None:
    """144 cases of one row: total variation below 1e-12."""
    paths = 0
    for case in CASES:
        if case[:2] == (drafter, verification):
            paths += check_exactness(world(*case, [[0, 1]]), [[0, 1]], copies=copies(case[3])).paths
    print(f"{paths} paths")


@pytest.mark.mostly_slow(every=6)
@pytest.mark.parametrize("verification", VERIFICATIONS)
@pytest.mark.parametrize("drafter", ["other", "by turns"])
def test_more_tokens(drafter: str, verification: str) -> None:
    """Vocabularies and texts of three and four tokens, at the highest entropy."""
    paths = 0
    for vocab, chain, length, stop in [(3, "temperature", "2", "three"), (4, "truncation", "1", "end")]:
        make = world(drafter, verification, chain, length, stop, [[0, 1]], seed=5, vocab=vocab)
        paths += check_exactness(make, [[0, 1]], copies=64).paths
    print(f"{paths} paths")


@pytest.mark.mostly_slow(every=6)
@pytest.mark.parametrize("verification", VERIFICATIONS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_two_ragged_rows(drafter: str, verification: str) -> None:
    """Joint distribution of two rows with unequal prompts, drafts and ends: that of independent rows."""
    prompts = [[0, 1], [1]]
    for chain, length, stop in [("no-token", "2", "three"), ("temperature", "1", "pair")]:
        make = world(drafter, verification, chain, length, stop, prompts)
        print(f"{check_exactness(make, prompts, copies=32).paths} paths")


BRACKETS = Grammar(Brackets(2))


@pytest.mark.parametrize("verification", VERIFICATIONS)
class TestOtherDrafters:
    def check(
        self, verification: str, drafter: Callable[[], Drafter], copies: int = 32, **parts: Any
    ) -> None:
        """Two rows of unequal prompts."""
        usual = {"decoder": scripted(1, 2), "num_draft_tokens": 2, "stop": Ends(2), **parts}

        def make() -> Generator:
            return SpeculativeGenerator(
                drafter=drafter(), verification=VERIFICATIONS[verification], sampler=Sample(seed=0), **usual
            )

        check_exactness(make, [[0], [1, 0]], copies=copies)

    def test_copies(self, verification: str) -> None:
        """Matches in the text and in a corpus."""
        self.check(verification, lambda: SuffixAutomaton([0, 0, 1, 0, 1, 1]), stop=MaxNewTokens(3))

    def test_forced_tokens_and_draws_behind_them(self, verification: str) -> None:
        """Point-mass and sampled draft tokens in the same row."""
        drafter = ForcedTokens(BRACKETS, then=DraftModel(scripted(2, 4)))
        chain = BRACKETS | Temperature(0.8)
        self.check(verification, lambda: drafter, decoder=scripted(1, 4), processors=chain)

    def test_a_mixture_that_learns(self, verification: str) -> None:
        """It selects by the acceptance of past drafts, sampled ones included."""
        drafters, costs = (SuffixAutomaton(), DraftModel(scripted(2, 2))), (0, 0.1)
        self.check(verification, lambda: Mixture(drafters, costs), copies=1)


@pytest.mark.parametrize("tree", [Tree.comb(2, 2), Tree([-1, -1, 1])], ids=["comb", "second"])
def test_trees(tree: Tree) -> None:
    """On every branch, with a processor that depends on its tokens."""
    target, drafter = scripted(1, 2), DraftTree(scripted(3, 2), tree)

    def make() -> Generator:
        return SpeculativeGenerator(
            target, drafter, processors=FrequencyPenalty(0.8), sampler=Sample(seed=0), stop=MaxNewTokens(4)
        )

    check_exactness(make, [[0, 1]], copies=32)


@pytest.mark.parametrize("verification", VERIFICATIONS)
def test_two_rows_with_parameters_of_their_own(verification: str) -> None:
    """Temperatures and limits per row, and a draft length that depends on both rows."""
    prompts, target, draft = [[0, 1], [1]], scripted(1, 2), DraftModel(scripted(2, 2))

    def make() -> Generator:
        return SpeculativeGenerator(
            target,
            draft,
            verification=VERIFICATIONS[verification],
            processors=Temperature([0.7, 1.3]),
            num_draft_tokens=OneMoreThanAccepted(most=1, allowed=1),
            stop=MaxNewTokens([3, 2]),
            sampler=Sample(seed=0),
        )

    print(f"{check_exactness(make, prompts).paths} paths")


@attrs.define(eq=False)
class Noting:
    """Records the number accepted in the first step with a draft."""

    verification: Verification
    accepted: int | None = None
    compares_scores: ClassVar[bool] = True
    reads_target_tokens: ClassVar[bool] = False

    def drafting(self, sampler: Sampler, start: Tensor) -> Sampler:
        return self.verification.drafting(sampler, start)

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        accepted, next_token = self.verification(draft, choices, scores, window)
        if draft.ids.numel() and self.accepted is None:
            self.accepted = int(accepted)
        return accepted, next_token


def expected_accepted(verification: Verification, target: Tensor, draft: Drafter, k: int) -> float:
    """Mean number accepted of a first draft of *k* tokens, over all paths."""
    decoder, notes = ScriptedDecoder(target), []

    def make() -> Generator:
        notes.append(Noting(verification))
        return SpeculativeGenerator(
            decoder,
            draft,
            verification=notes[-1],
            num_draft_tokens=k,
            sampler=Sample(seed=0),
            stop=Ends(2),
        )

    return output_distribution(make, [0], output=lambda generation: notes[-1].accepted).expected(float)


def most_accepted(target: Tensor, draft: Tensor, k: int) -> float:
    """The sum over i of 1 - TV of the distributions of i draft tokens, after prompt 0 and a first token."""
    total = 0.0
    for text in (text for i in range(1, k + 1) for text in itertools.product(range(2), repeat=i + 1)):
        lines = [whole_prefix((0, *text[:i])) % len(target) for i in range(len(text))]
        p, q = (
            [float(logits[line].double().softmax(-1)[token]) for line, token in zip(lines, text, strict=True)]
            for logits in (target, draft)
        )
        total += p[0] * min(math.prod(p[1:]), math.prod(q[1:]))
    return total


class TestBlock:
    def test_accepts_as_many_as_the_paper(self) -> None:
        """For target (1/3, 2/3), draft (2/3, 1/3), k = 2: 11/9 are accepted; token by token 10/9."""
        target = torch.tensor([[1.0, 2.0]]).log()
        draft = DraftModel(ScriptedDecoder(target.flip(1)))

        assert 11 / 9 == pytest.approx(expected_accepted(BlockVerification(), target, draft, 2), rel=1e-6)
        assert 10 / 9 == pytest.approx(expected_accepted(RejectionSampling(), target, draft, 2), rel=1e-6)

    @pytest.mark.mostly_slow(every=4)
    @pytest.mark.parametrize("seed", range(8))
    def test_accepts_at_least_what_rejection_does(self, seed: int) -> None:
        """On average, in random cases; and at most the bound from the prefix distributions."""
        target, draft = table(seed, 2), table(seed + 100, 2)
        model = DraftModel(ScriptedDecoder(draft))
        block, token = (
            expected_accepted(v, target, model, 3) for v in (BlockVerification(), RejectionSampling())
        )

        assert token <= block + 1e-12
        assert block <= most_accepted(target, draft, 3) + 1e-12

    @pytest.mark.parametrize("seed", range(3))
    def test_of_point_masses_it_accepts_as_many(self, seed: int) -> None:
        """A draft of point masses: the same number as token by token."""
        target = table(seed, 3)
        block, token = (
            expected_accepted(v, target, LeastLikely(target), 2)
            for v in (BlockVerification(), RejectionSampling())
        )

        assert token == pytest.approx(block, rel=1e-12)


class TestKit:
    def test_shows_the_output_that_differs_most(self) -> None:
        """For a wrong stop, the message has the worst output and both probabilities."""
        with pytest.raises(
            AssertionError, match=r"variation of 0\.\d+, allowed 1e-12: \[\d.*\] \w+ comes with"
        ):
            check_exactness(lambda: plain(processors=Forgetful()), [0])

    def test_needs_draws_from_the_softmax(self) -> None:
        """A sampler of another distribution is refused by name."""
        with pytest.raises(ValueError, match=r"'sampler' must draw from the softmax.*got Greedy\(\)"):
            check_exactness(lambda: plain(sampler=Greedy()), [0])

    @pytest.mark.parametrize("copies", [0, 3])
    def test_needs_rows_for_its_copies(self, copies: int) -> None:
        """More paths at a time than the decoder has rows for are refused."""
        with pytest.raises(ValueError, match="'copies' must be 1 to 2"):
            check_exactness(lambda: plain(), [0], copies=copies)

    def test_numbers_cannot_be_enumerated(self) -> None:
        """Direct use of the noise is refused, naming the functions to use."""
        with pytest.raises(RuntimeError, match=r"ask noise\.coin or noise\.draw"):
            check_exactness(lambda: plain(processors=Asking()), [0])

    def test_impurity_is_noticed(self) -> None:
        """A part that counts its calls is not deterministic given the noise."""
        processor = Counting()
        with pytest.raises(RuntimeError, match="not a function of a row's own tokens"):
            output_distribution(lambda: plain(processors=processor), [0])

    def test_sides_by_side_is_the_same(self) -> None:
        """Paths run as rows of one batch give the same distribution as one at a time."""
        make = world("other", "block", "temperature", "2", "pair", [[0]])
        alone, together = output_distribution(make, [0]), output_distribution(make, [0], copies=7)

        assert alone.paths == together.paths
        assert 0.0 == pytest.approx(total_variation(alone, together), abs=1e-15)

    def test_adds_up_to_one(self) -> None:
        """Both distributions sum to 1; disjoint distributions have a total variation of 1."""
        make = world("other", "rejection", "none", "1", "three", [[0]])
        found, expected = output_distribution(make, [0]), chain_rule(make, [0])
        other = output_distribution(make, [0], output=lambda generation: "elsewhere")

        assert 1.0 == pytest.approx(sum(found.probabilities.values()), abs=1e-14)
        assert 1.0 == pytest.approx(sum(expected.probabilities.values()), abs=1e-14)
        assert 1.0 == pytest.approx(total_variation(found, other), abs=1e-14)
        assert "1.0000  elsewhere" == str(other)


def plain(**parts: Any) -> Generator:
    """Plain decoding of two tokens, or as *parts* say; a nonsense draft gives it windows."""
    parts = {"sampler": Sample(seed=0), "stop": Ends(2), **parts}
    if parts["sampler"].__class__ is Greedy:
        return Generator(scripted(1, 2, rows=2), **parts)
    return SpeculativeGenerator(scripted(1, 2, rows=2), Garbage(), num_draft_tokens=1, **parts)


class Forgetful:
    """A processor that ignores windows."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        return logits * 0.3 if logits.shape[1] == 1 else logits


class Asking:
    """A processor that draws its own noise."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        return (
            logits
            + noise.uniform(history.random_stream[:, None], history.length, noise.XTC, history.length)[
                ..., None
            ]
        )


@attrs.define(eq=False)
class Counting:
    """A processor that masks all but one token at its third call."""

    calls: int = 0

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        self.calls += 1
        return logits.masked_fill(torch.arange(2) == self.calls % 2, -torch.inf) if self.calls > 3 else logits
