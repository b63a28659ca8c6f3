"""
Mutation tests: the exactness check must detect known bugs of speculation.

They are bugs that other projects have shipped and fixed, and likely mistakes. Without
the bug, the same case passes.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch import Tensor

from decodekit.decoding import Draft, EndOfSequence, Generator, History, Sample
from decodekit.decoding.protocols import (
    Drafter,
    Finish,
    Processor,
    Sampler,
    SamplesTokens,
    StopCondition,
    Verification,
)
from decodekit.decoding.sampling import noise
from decodekit.decoding.scores import Scores
from decodekit.processors import FrequencyPenalty, Temperature, TopK
from decodekit.speculation import (
    BlockVerification,
    DraftModel,
    PromptLookup,
    RejectionSampling,
    SpeculativeGenerator,
)
from decodekit.speculation.exactness.exactness_check import check_exactness, output_distribution
from decodekit.speculation.verification import (
    block_verification as block,
    distributions,
    rejection_sampling as rejection,
)

from ..worlds import Ends, LeastLikely, NoneAfter, scripted

BOTH = pytest.mark.parametrize(
    "verification", [RejectionSampling(), BlockVerification()], ids=["rejection", "block"]
)

TARGET, OTHER = scripted(1, 3), scripted(2, 3)
DRAFT = DraftModel(OTHER)
SMALL, CONFIDENT = scripted(1, 2), DraftModel(scripted(2, 2, scale=1.5))


def world(**parts: Any) -> Callable[[], Generator]:
    """Vocabulary of three, two tokens of text, two draft tokens per step; or as in *parts*."""
    usual = {
        "decoder": TARGET,
        "drafter": DRAFT,
        "verification": RejectionSampling(),
        "processors": Temperature(0.7),
        "num_draft_tokens": 2,
        "stop": Ends(2),
        "sampler": Sample(seed=0),
    }
    return lambda: SpeculativeGenerator(**{**usual, **parts})


PROMPT = [[0, 1]]


def passes(prompts: list[list[int]] = PROMPT, **parts: Any) -> None:
    """Without the bug the distribution is the chain rule's."""
    check_exactness(world(**parts), prompts, copies=TARGET.shape.batch_size // len(prompts))


def caught(prompts: list[list[int]] = PROMPT, **parts: Any) -> None:
    """With the bug the distribution is off by far more than rounding."""
    with pytest.raises(AssertionError, match="off by a total variation"):
        check_exactness(world(**parts), prompts, 1e-6, TARGET.shape.batch_size // len(prompts))


# Scores of the draft


@attrs.frozen(eq=False)
class Resampled:
    """A sampling pipeline whose ids or scores *change* alters, given to a drafter."""

    sample: SamplesTokens
    change: Callable[[Tensor, Tensor, Scores], tuple[Tensor, Scores]]

    @property
    def draft_scores(self) -> bool:
        return self.sample.draft_scores

    def __call__(self, logits: Tensor, history: History) -> tuple[Tensor, Scores]:
        return self.change(logits, *self.sample(logits, history))


@attrs.frozen(eq=False)
class Misled:
    """*drafter* with such a pipeline."""

    drafter: Drafter
    change: Callable[[Tensor, Tensor, Scores], tuple[Tensor, Scores]]

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        return self.drafter.propose(history, budget, Resampled(sample, self.change))


def argmax(logits: Tensor, ids: Tensor, scores: Scores) -> tuple[Tensor, Scores]:
    return scores.logits.argmax(dim=-1), scores


def raw(logits: Tensor, ids: Tensor, scores: Scores) -> tuple[Tensor, Scores]:
    copy = logits.clone()
    return ids, Scores(lambda: copy)


@BOTH
class TestDraftScores:
    def test_of_an_argmax_must_be_a_point_mass(self, verification: Verification) -> None:
        """Argmax draft tokens with soft scores."""
        caught(drafter=Misled(DRAFT, argmax), verification=verification)
        passes(drafter=DRAFT, verification=verification)

    @pytest.mark.parametrize("chain", [Temperature(0.7), TopK(2)], ids=["temperature", "top-k"])
    def test_must_be_the_processed_ones(self, chain: Processor, verification: Verification) -> None:
        """Tokens sampled from processed logits, with raw logits as scores."""
        caught(drafter=Misled(DRAFT, raw), verification=verification, processors=chain)
        passes(drafter=DRAFT, verification=verification, processors=chain)


# Number of draft tokens that are verified


@attrs.frozen(eq=False)
class Cut:
    """Draft of a model, cut where *keep* says by tokens and distributions."""

    keep: Callable[[Tensor, Tensor], Tensor]

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        draft = CONFIDENT.propose(history, budget, sample)
        assert draft.scores is not None
        kept = self.keep(draft.ids, draft.scores.double().softmax(-1))
        return attrs.evolve(draft, ids=draft.ids.masked_fill(torch.arange(draft.ids.shape[1]) >= kept, -1))


def before_the_first(fails: Tensor) -> Tensor:
    """Number of columns before the first that *fails*, ``[batch, 1]``."""
    return (~fails).cumprod(dim=-1).sum(dim=-1, keepdim=True)


def own_probability(ids: Tensor, q: Tensor) -> Tensor:
    return q.gather(-1, ids.clamp(min=0)[..., None]).squeeze(-1)


def drop_the_unlikely(ids: Tensor, q: Tensor) -> Tensor:
    """Drops an unlikely token: that changes the distribution, as it was sampled."""
    return before_the_first(own_probability(ids, q) < 0.4)


def drop_the_unlikely_prefix(ids: Tensor, q: Tensor) -> Tensor:
    """The same by the probability of the whole prefix."""
    return before_the_first(own_probability(ids, q).cumprod(dim=-1) < 0.2)


def stop_after_the_unlikely(ids: Tensor, q: Tensor) -> Tensor:
    """Keeps it as the last token: a token decides only about the next one."""
    return before_the_first(own_probability(ids, q) < 0.4) + 1


def stop_before_the_unsure(ids: Tensor, q: Tensor) -> Tensor:
    """Decided by the draft's confidence, before it draws."""
    return before_the_first(q.amax(dim=-1) < 0.6)


def best_of_live_confidences(ids: Tensor, q: Tensor) -> Tensor:
    """
    One token or three, whichever should pay more: two cost as much as three.

    Each confidence is that before sampling. But the third depends on the second draft token, and
    decides whether that one is verified.
    """
    survival = q.amax(dim=-1).cumprod(dim=-1)
    return torch.where(survival[:, 1:].sum(dim=-1, keepdim=True) > 0.95, 3, 1)


UNPREDICTABLE = [drop_the_unlikely, drop_the_unlikely_prefix, best_of_live_confidences]
LENGTHS_WORLD = {"decoder": SMALL, "processors": None, "num_draft_tokens": 3, "stop": Ends(3)}
PREDICTABLE = [stop_after_the_unlikely, stop_before_the_unsure]


@BOTH
class TestLengths:
    @pytest.mark.parametrize("keep", UNPREDICTABLE, ids=lambda keep: keep.__name__)
    def test_that_look_at_what_they_decide_on(
        self, keep: Callable[[Tensor, Tensor], Tensor], verification: Verification
    ) -> None:
        """Whether a sampled token is verified depends on its value."""
        caught(drafter=Cut(keep), verification=verification, **LENGTHS_WORLD)

    @pytest.mark.parametrize("keep", PREDICTABLE, ids=lambda keep: keep.__name__)
    def test_that_do_not(self, keep: Callable[[Tensor, Tensor], Tensor], verification: Verification) -> None:
        """Decided before the token is sampled, any length is correct."""
        passes(drafter=Cut(keep), verification=verification, **LENGTHS_WORLD)


# Keys of the noise


def rekeyed(
    question: Callable[..., Tensor], purpose: int, change: Callable[..., tuple[Any, ...]]
) -> Callable[..., Tensor]:
    """A noise function with other keys for *purpose*."""

    def calls(stream: Any, position: Any, why: int, index: Any, chances: Any) -> Tensor:
        keys = (stream, position, why, index)
        return question(*(change(*keys) if why == purpose else keys), chances)

    return calls


def as_the_draft(stream: Tensor, start: Tensor, why: int, index: Tensor) -> tuple[Any, ...]:
    """The key by which the draft token was sampled."""
    random_streams = noise.folded(stream.reshape(-1), noise.DRAFT, start.reshape(-1)).reshape(stream.shape)
    return random_streams, start + index, noise.TOKEN, torch.zeros_like(index)


def by_position(stream: Tensor, start: Tensor, why: int, index: Tensor) -> tuple[Any, ...]:
    """The key of the token's position, independent of the step."""
    return stream, start + index, why, torch.zeros_like(index)


class DraftsBlind(BlockVerification):
    """Samples drafts by position alone: a later step reuses the noise of rejected tokens."""

    def drafting(self, sampler: Sampler, start: Tensor) -> Sampler:
        return super().drafting(sampler, torch.zeros_like(start))


class TestNoise:
    @BOTH
    def test_of_draft_and_acceptance(
        self, verification: Verification, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Acceptance reuses the draft token's noise."""
        monkeypatch.setattr(noise, "coin", rekeyed(noise.coin, noise.ACCEPT, as_the_draft))
        caught(verification=verification)

    @BOTH
    def test_of_draft_and_residual(self, verification: Verification, monkeypatch: pytest.MonkeyPatch) -> None:
        """The replacement reuses the draft token's noise."""
        monkeypatch.setattr(noise, "draw", rekeyed(noise.draw, noise.RESIDUAL, as_the_draft))
        caught(verification=verification)

    @BOTH
    def test_of_acceptance_and_residual(
        self, verification: Verification, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The replacement reuses the noise of the rejection."""
        monkeypatch.setattr(noise, "ACCEPT", noise.RESIDUAL)
        caught(verification=verification)

    def test_of_acceptance_in_two_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keyed by position, a later token's acceptance noise is reused by the next step."""
        monkeypatch.setattr(noise, "coin", rekeyed(noise.coin, noise.ACCEPT, by_position))
        caught(verification=BlockVerification(), stop=Ends(3))

    def test_of_draft_tokens_in_two_steps(self) -> None:
        """Keyed by position, a rejected token's noise samples the next step's draft."""
        caught(verification=DraftsBlind(), stop=Ends(3))

    @BOTH
    def test_as_it_is(self, verification: Verification) -> None:
        """Without the bugs all these cases are correct."""
        passes(verification=verification, stop=Ends(3))


# Columns of the comparison


@attrs.frozen(eq=False)
class Wrong:
    """*verification* with altered arguments or result."""

    verification: Verification
    compares_scores: ClassVar[bool] = True
    reads_target_tokens: ClassVar[bool] = False

    def drafting(self, sampler: Sampler, start: Tensor) -> Sampler:
        return self.verification.drafting(sampler, start)

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        return self.verification(draft, choices, scores, window)


class OneOff(Wrong):
    """Looks up a draft token in the scores of the next column."""

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        logits = scores.logits
        later = Scores(lambda: torch.cat([logits[:, 1:], logits[:, -1:]], dim=1))
        return super().__call__(draft, choices, later, window)


class FirstUnverified(Wrong):
    """Accepts the first draft token unconditionally."""

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        accepted, next_token = super().__call__(draft, choices, scores, window)
        return accepted.maximum((draft.ids >= 0).sum(dim=-1).clamp(max=1)), next_token


class CountsNonzero(Wrong):
    """Counts only accepted ids that are not 0."""

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        accepted, next_token = super().__call__(draft, choices, scores, window)
        acceptance = torch.arange(draft.ids.shape[1]) < accepted[:, None]
        return (acceptance & (draft.ids > 0)).sum(dim=-1), next_token


class FirstRowsScores(Wrong):
    """Uses the first row's scores for every row."""

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        logits = scores.logits
        return super().__call__(draft, choices, Scores(lambda: logits[:1].expand_as(logits)), window)


class FirstRowsLength(Wrong):
    """Uses the first row's number of accepted tokens for every row."""

    def __call__(
        self, draft: Draft, choices: Tensor, scores: Scores, window: History
    ) -> tuple[Tensor, Tensor]:
        accepted, next_token = super().__call__(draft, choices, scores, window)
        return accepted[0].minimum((draft.ids >= 0).sum(dim=-1)), next_token


RAGGED = [[0, 1], [1]]


@BOTH
class TestComparison:
    @pytest.mark.parametrize("mutant", [OneOff, FirstUnverified, CountsNonzero])
    def test_of_other_columns(self, mutant: type[Wrong], verification: Verification) -> None:
        """Scores, draft tokens and ids of another column."""
        caught(verification=mutant(verification))
        passes(verification=Wrong(verification))

    @pytest.mark.parametrize("mutant", [FirstRowsScores, FirstRowsLength])
    def test_of_other_rows(self, mutant: type[Wrong], verification: Verification) -> None:
        """Values of the first row used for all; detected with two rows, one path at a time."""
        parts = {"num_draft_tokens": 1, "stop": Ends(2), "processors": TopK(2)}
        with pytest.raises(AssertionError, match="off by a total variation"):
            check_exactness(world(verification=mutant(verification), **parts), RAGGED, 1e-6)
        check_exactness(world(verification=Wrong(verification), **parts), RAGGED)

    def test_with_a_draft_taken_for_certain(
        self, verification: Verification, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ratio of a point mass, residual of the draft distribution."""
        for module in (rejection, block):
            monkeypatch.setattr(module, "token_probabilities", certain_of_the_draft())
        caught(verification=verification)

    def test_with_a_certain_draft_taken_for_none(
        self, verification: Verification, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ratio of a point mass, residual that still contains the token."""
        for module in (rejection, block):
            monkeypatch.setattr(module, "next_token", unsubtracted)
        caught(verification=verification, drafter=LeastLikely(TARGET.table))
        caught(verification=verification, drafter=PromptLookup(), prompts=[[0, 1, 0]])


def certain_of_the_draft() -> Callable[[Tensor, Draft], Tensor]:
    """As ``token_probabilities``, but 1 of the draft's own distribution."""

    def token_probabilities(distribution: Tensor, draft: Draft) -> Tensor:
        is_own = not distribution[:, -1].any()
        return (
            torch.ones(draft.ids.shape).double()
            if is_own
            else distributions.token_probabilities(distribution, draft)
        )

    return token_probabilities


# Replacement of a rejected token


def softmaxed(residual: Tensor, distribution: Tensor, *others: Any) -> Tensor:
    return distributions.next_token(residual.softmax(dim=-1), distribution, *others)


def unsubtracted(residual: Tensor, distribution: Tensor, *others: Any) -> Tensor:
    return distributions.next_token(distribution, distribution, *others)


def uniform_for_nothing(residual: Tensor, distribution: Tensor, *others: Any) -> Tensor:
    return distributions.next_token(
        residual, torch.where(distribution.sum(-1, True) > 0, distribution, 1.0), *others
    )


@BOTH
class TestResidual:
    @pytest.mark.parametrize("mutant", [softmaxed, unsubtracted])
    def test_is_what_the_draft_leaves(
        self, mutant: Callable[..., Tensor], verification: Verification, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither the residual's softmax, which has no zeros, nor the target's distribution."""
        for module in (rejection, block):
            monkeypatch.setattr(module, "next_token", mutant)
        caught(verification=verification)

    def test_of_nothing_is_nothing(self, verification: Verification, monkeypatch: pytest.MonkeyPatch) -> None:
        """A uniform draw where no token is left."""
        for module in (rejection, block):
            monkeypatch.setattr(module, "next_token", uniform_for_nothing)
        caught(verification=verification, processors=NoneAfter(), stop=Ends(3))
        monkeypatch.undo()
        passes(verification=verification, processors=NoneAfter(), stop=Ends(3))

    @pytest.mark.parametrize("draft_probability", [1.0, 0.0], ids=["by-equality", "by-0-over-0"])
    def test_never_comes_of_accepting_the_forbidden(
        self, verification: Verification, draft_probability: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        P = 0 falls whatever the number.

        Not for u ≤ p / q, should u ever be 0, nor for not u > p / q, should q be 0 as well.
        """
        monkeypatch.setattr(noise, "uniform", lowest)
        q = [draft_probability, 1 - draft_probability]

        assert 0 == accepted(verification, [0.0, 1.0], q)
        monkeypatch.setattr(noise, "coin", lenient)
        # Block verification turns 0 / 0 into a share of 0.
        lenience = 0 if isinstance(verification, BlockVerification) and not draft_probability else 1
        assert lenience <= accepted(verification, [0.0, 1.0], q)


def lowest(stream: Tensor, position: Tensor, purpose: int, index: Tensor) -> Tensor:
    """Uniform numbers of 0, which ``uniform`` never returns."""
    return torch.zeros(torch.broadcast_shapes(stream.shape, position.shape, index.shape)).double()


def lenient(stream: Tensor, position: Tensor, purpose: int, index: Tensor, probability: Tensor) -> Tensor:
    return ~(noise.uniform(stream, position, purpose, index) > probability)


def accepted(verification: Verification, p: list[float], q: list[float]) -> int:
    """Whether token 0 is accepted as a single draft token under *p* and *q*."""
    draft = Draft(torch.zeros(1, 1).long(), torch.tensor([[q]]).log())
    one = torch.ones(1).long()
    window = History(torch.zeros(1, 1, 8).long(), torch.tensor([[3, 4]]), one, one)
    logits = torch.tensor([[p, p]]).log()
    return int(verification(draft, torch.ones(1, 2).long(), Scores(lambda: logits), window)[0])


# Use of the window


@attrs.frozen(eq=False)
class LastColumnOnly:
    """*stop*, applied to the last token of a step alone."""

    stop: StopCondition

    @property
    def finishes(self) -> tuple[Finish, ...]:
        return self.stop.finishes

    def __call__(self, scores: Scores, history: History) -> Tensor:
        codes = self.stop(scores, history)
        return codes.masked_fill(history.length < history.length[:, -1:], 0)


@attrs.frozen(eq=False)
class StepsOnly:
    """*processor*, applied to single columns only."""

    processor: Processor

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        return self.processor(logits, history) if logits.shape[1] == 1 else logits


@attrs.frozen(eq=False)
class FirstColumns:
    """*processor*, with the first column's history for every column."""

    processor: Processor

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        return self.processor(
            logits, attrs.evolve(history, length=history.length[:, :1].expand_as(history.length))
        )


@attrs.frozen(eq=False)
class CountsTwice:
    """A frequency penalty that counts the newest token of a window twice."""

    penalty: Processor

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        if logits.shape[1] == 1:
            return self.penalty(logits, history)
        newest = history.ids[:, 0].gather(-1, history.length - 1)
        return self.penalty(logits, history) - 0.8 * (newest[..., None] == torch.arange(logits.shape[-1]))


@BOTH
class TestWindows:
    def test_are_stopped_at_every_column(self, verification: Verification) -> None:
        """A stop applied to a step's last token alone misses an earlier end."""
        stop = EndOfSequence(0) | Ends(3)
        caught(verification=verification, stop=LastColumnOnly(stop))
        passes(verification=verification, stop=stop)

    @pytest.mark.mostly_slow(every=3)
    @pytest.mark.parametrize(
        ("mutant", "chain"),
        [
            (StepsOnly, Temperature(0.5)),
            (FirstColumns, FrequencyPenalty(0.8)),
            (CountsTwice, FrequencyPenalty(0.8)),
        ],
    )
    def test_are_processed_as_steps_are(
        self, mutant: Callable[[Processor], Processor], chain: Processor, verification: Verification
    ) -> None:
        """Every column with the tokens before it, each counted once."""
        caught(verification=verification, processors=mutant(chain), stop=Ends(3))
        passes(verification=verification, processors=chain, stop=Ends(3))


# Not a bug of the distribution


@attrs.frozen(eq=False)
class Gappy:
    """A draft that was fed another token instead of the one before the newest."""

    drafter: Drafter

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        ids = history.ids.clone()
        gap = history.length - 2
        ids[:, 0].scatter_(-1, gap, 1 - ids[:, 0].gather(-1, gap))
        return self.drafter.propose(attrs.evolve(history, ids=ids), budget, sample)


@BOTH
def test_a_draft_that_lags_behind_costs_acceptance_alone(verification: Verification) -> None:
    """A gap in its cache lowers the acceptance; the distribution is the same."""
    same = DraftModel(scripted(1, 2))
    passes(drafter=same, verification=verification, decoder=SMALL)
    passes(drafter=Gappy(same), verification=verification, decoder=SMALL)
    accepted = [
        output_distribution(
            world(drafter=drafter, verification=verification, decoder=SMALL),
            PROMPT,
            output=lambda generation: sum(generation.statistics.accepted),
        ).expected(float)
        for drafter in (same, Gappy(same))
    ]

    assert accepted[1] < 0.9 * accepted[0]
