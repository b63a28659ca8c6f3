"""Drafts end by their own confidence, and change no text."""

from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from decodekit.decoding import ExactMatch, Generator, Greedy, History, MaxNewTokens, Sample
from decodekit.decoding.cache.slots import Slots
from decodekit.decoding.engine.decode_loop import DecodeLoop
from decodekit.decoding.engine.parts import begin_run
from decodekit.decoding.optional_protocols import GoesOn
from decodekit.decoding.protocols import Draft, Sampler, SamplesTokens, Verification
from decodekit.decoding.results.statistics import Statistics
from decodekit.decoding.results.timers import Timers
from decodekit.processors import Temperature
from decodekit.speculation import (
    BlockVerification,
    ConfidenceLength,
    DraftModel,
    DraftTree,
    PromptLookup,
    RejectionSampling,
    SpeculativeGenerator,
    Tree,
    check_exactness,
)
from decodekit.testing import ScriptedDecoder, last_token

from ...histories import history_of_rows
from ..worlds import Ends, scripted

SURE = torch.tensor([[0.0, 9.0, 0.0], [0.0, 0.0, 9.0], [0.1, 0.0, 0.0]])
"""After 0 surely 1, after 1 surely 2, after 2 hardly 0."""


def decoder(table: Tensor = SURE, rows: int = 2) -> ScriptedDecoder:
    """A decoder over *table*, which scores nine columns."""
    return ScriptedDecoder(table, rows, 32, widths=(1, 9), scored_width=9, line=last_token)


class TestLength:
    def test_draft_ends_after_the_unlikely_token(self) -> None:
        """2 and an unlikely 0, which is kept; nothing follows it."""
        generator = SpeculativeGenerator(
            decoder(), DraftModel(decoder()), ConfidenceLength(8, 0.5), stop=MaxNewTokens(13)
        )
        result = generator([0])

        assert [1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1] == result.ids[0]
        # Each draft follows a 1, which the target gave.
        assert [4, 4] == result.statistics.drafted == result.statistics.accepted

    def test_threshold_of_zero_never_ends_one(self) -> None:
        """As the same number."""
        lengths: list[Any] = [ConfidenceLength(8, 0.0), 8]
        drafted = [
            SpeculativeGenerator(decoder(), DraftModel(decoder()), length, stop=MaxNewTokens(20))(
                [0]
            ).statistics.drafted
            for length in lengths
        ]

        assert drafted[0] == drafted[1]

    def test_rows_end_their_drafts_one_by_one(self) -> None:
        """One call of the drafter: a row goes on where its token is likely enough."""
        history = history_of_rows([[0], [1]])
        sample = Generator(decoder(), sampler=Greedy()).pipeline
        length = ConfidenceLength(8, 0.5)
        draft = DraftModel(decoder()).propose_while(history, torch.tensor([8, 8]), sample, length.goes_on)

        assert [[1, 2, 0], [2, 0, -1]] == draft.ids.tolist()

    def test_no_forward_follows_the_last_token(self) -> None:
        """A draft costs as many forwards as its longest row has tokens."""
        draft = decoder()
        sample = Generator(decoder(), sampler=Greedy()).pipeline
        DraftModel(draft).propose_while(
            history_of_rows([[0], [1]]), torch.tensor([8, 8]), sample, ConfidenceLength(8, 0.5).goes_on
        )

        assert 3 == Slots.of(draft).counts.forwards

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"most": -1}, "'most' must be >= 0"),
            ({"threshold": 1.5}, "'threshold' must be >= 0 and <= 1"),
            ({"threshold": float("nan")}, "'threshold' must be >= 0 and <= 1"),
        ],
    )
    def test_refused(self, options: dict[str, Any], message: str) -> None:
        """By the rule."""
        with pytest.raises(ValueError, match=message):
            ConfidenceLength(**options)

    def test_needs_a_drafter_that_can_stop(self) -> None:
        """A lookup has no confidence: refused when the generator is built."""
        with pytest.raises(ValueError, match=r"propose_while\(\), such as DraftModel: got PromptLookup"):
            SpeculativeGenerator(decoder(), PromptLookup(), ConfidenceLength())

    def test_trees_are_refused(self) -> None:
        """They have no newest token."""
        with pytest.raises(ValueError, match=r"such as DraftModel: got DraftTree"):
            SpeculativeGenerator(
                scripted(1, 5), DraftTree(scripted(2, 5), Tree.comb(2, 2)), ConfidenceLength(3)
            )

    def test_must_be_scored(self) -> None:
        """The decoder scores one column more than the longest draft."""
        with pytest.raises(ValueError, match="must be at most 8"):
            SpeculativeGenerator(decoder(), DraftModel(decoder()), ConfidenceLength(9))


@pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("threshold", [0.2, 0.5, 1.0])
def test_text_is_plain_decodings(sampler: Sampler, threshold: float) -> None:
    """With exact match, token for token, whatever the threshold."""
    target, draft = scripted(1, 5), scripted(2, 5)
    parts: dict[str, Any] = {"sampler": sampler, "processors": Temperature(0.7), "stop": MaxNewTokens(12)}
    expected = Generator(target, **parts)([[0, 1], [3], [2, 2]]).ids

    assert (
        expected
        == SpeculativeGenerator(target, DraftModel(draft), ConfidenceLength(3, threshold), **parts)(
            [[0, 1], [3], [2, 2]]
        ).ids
    )


VERIFICATIONS = [ExactMatch(), RejectionSampling(), BlockVerification()]


@pytest.mark.parametrize("verification", VERIFICATIONS, ids=repr)
def test_distribution_is_the_targets(verification: Verification) -> None:
    """Under every verification: the unlikely token itself is verified."""
    for prompts, new in (([[0, 1]], 3), ([[0, 1], [1]], 2)):

        def make(new: int = new) -> Generator:
            return SpeculativeGenerator(
                scripted(1, 2),
                DraftModel(scripted(2, 2)),
                ConfidenceLength(3, 0.6),
                verification=verification,
                stop=MaxNewTokens(new),
                sampler=Sample(seed=0),
            )

        check_exactness(make, prompts, copies=32)


@attrs.frozen(eq=False)
class Dropping(DraftModel):
    """Leaves the unlikely token out of the draft: what the length policy must not do."""

    def propose_while(
        self, history: History, budget: Tensor, sample: SamplesTokens, goes_on: GoesOn
    ) -> Draft:
        whole = super().propose_while(history, budget, sample, goes_on)
        ids = whole.ids.clone()
        drafted = (ids >= 0).sum(dim=1)
        for row in (drafted < budget).nonzero().flatten().tolist():
            if drafted[row]:
                ids[row, drafted[row] - 1] = -1
        return Draft(ids, whole.scores)


def test_dropping_it_would_bias() -> None:
    """The check above finds a draft that leaves its unlikely token out."""

    def make() -> Generator:
        return SpeculativeGenerator(
            scripted(1, 2),
            Dropping(scripted(2, 2)),
            ConfidenceLength(3, 0.6),
            verification=RejectionSampling(),
            stop=Ends(3),
            sampler=Sample(seed=0),
        )

    with pytest.raises(AssertionError, match="total variation"):
        check_exactness(make, [[0, 1]], copies=32)


def test_requests_of_one_table_end_their_own_drafts() -> None:
    """Two that share a draft model, with two thresholds and none: each drafts as it does alone."""
    draft = DraftModel(decoder(rows=3))
    lengths: list[Any] = [ConfidenceLength(8, 0.5), 8, ConfidenceLength(8, 0.0)]
    target = decoder(rows=3)
    feeder = Slots.of(target)
    loop = DecodeLoop.empty(feeder, Timers(Statistics()))
    statistics = []
    for row, length in enumerate(lengths):
        timers = Timers(Statistics())
        parts = SpeculativeGenerator(target, draft, length, stop=MaxNewTokens(16)).parts
        loop.join(begin_run(parts, feeder, 1, timers), history_of_rows([[0]], capacity=33), row)
        statistics.append(timers.statistics)
    while loop.requests:
        for request, _, learn in loop.step():
            learn()
            if not request.active:
                loop.leave(request)
    alone = [
        SpeculativeGenerator(decoder(), DraftModel(decoder()), length, stop=MaxNewTokens(16))([0]).statistics
        for length in lengths
    ]

    assert [one.drafted for one in alone] == [one.drafted for one in statistics]
    assert alone[0].drafted != alone[1].drafted
