"""Drafting."""

import contextlib
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from decodekit.decoding import (
    Draft,
    EndOfSequence,
    Generator,
    History,
    MaxLength,
    MaxNewTokens,
    NotBefore,
    Sample,
    SpeculationStep,
    StopCondition,
)
from decodekit.decoding.protocols import SamplesTokens
from decodekit.speculation import RejectionSampling
from decodekit.testing import ScriptedDecoder, last_token

# The token after i is i + 1.
COUNTING = torch.eye(9).roll(1, dims=1) * 30


@attrs.define(eq=False)
class Says:
    """Proposes what *draft* returns for the number of rows."""

    draft: Any
    tree_nodes: int | None = None

    def propose(self, history: History, budget: Tensor, pipeline: SamplesTokens) -> Draft:
        result: Draft = self.draft(len(budget))
        return result


def generator(**parts: Any) -> Generator:
    """Over a decoder that counts."""
    return Generator(
        ScriptedDecoder(COUNTING, 2, line=last_token, tree_widths=(8,)),
        **{"stop": MaxNewTokens(6), "num_draft_tokens": 3, **parts},
    )


@attrs.define(eq=False)
class Policy:
    """Allows *lengths* one after another, and records the outcomes."""

    lengths: list[int]
    most: int = 3
    rows: list[int] = attrs.field(factory=list)
    heard: list[SpeculationStep] = attrs.field(factory=list)

    def __call__(self, rows: int) -> int:
        self.rows.append(rows)
        return self.lengths[(len(self.rows) - 1) % len(self.lengths)]

    def learn(self, outcome: SpeculationStep) -> None:
        self.heard.append(outcome)


@attrs.frozen(eq=False)
class Counting:
    """Drafts what the decoder says, and records the budgets."""

    budgets: list[list[int]]

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        self.budgets.append(budget.tolist())
        newest = torch.tensor([[history.before(row, 0)[-1]] for row in range(len(budget))])
        return Draft(newest + 1 + torch.arange(int(budget.max())))


class TestDrafting:
    @pytest.mark.parametrize(
        ("draft", "message"),
        [
            (
                lambda rows: Draft(torch.zeros(rows, 2).long(), torch.zeros(rows, 2, 8)),
                r"and scores \[1, k, 9\]: got the shape \[1, 2, 8\]",
            ),
            (
                lambda rows: Draft(torch.zeros(rows, 2).long(), parents=torch.zeros(rows, 2).long()),
                "-1 or the index of an earlier draft token each",
            ),
            (
                lambda rows: Draft(torch.zeros(rows, 2).long(), parents=torch.full((rows, 1), -1)),
                "-1 or the index of an earlier draft token each",
            ),
            (
                lambda rows: Draft(torch.zeros(rows, 2).long(), parents=torch.full((rows, 2), -1.0)),
                "-1 or the index of an earlier draft token each",
            ),
        ],
        ids=["scores", "its own parent", "too few parents", "no numbers"],
    )
    def test_refuses_drafts_that_are_none(self, draft: Any, message: str) -> None:
        """Of a chain and of a tree, before the target has seen anything of them."""
        drafting = generator(drafter=Says(draft))

        with pytest.raises(ValueError, match=message):
            drafting([1])
        assert [[2, 3, 4, 5, 6, 7]] == generator()([1]).ids

    def test_asks_a_policy_round_by_round(self) -> None:
        """With the rows that go on; it learns the allowed, drafted and accepted lengths of these rows."""
        # The second row is always drafted wrongly, and ends first.
        wrong = Says(lambda rows: Draft(torch.tensor([[2, 3, 4], [0, 0, 0]])))
        policy = Policy([3, 0, 1])
        result = generator(drafter=wrong, num_draft_tokens=policy, stop=EndOfSequence(5) | MaxNewTokens(6))(
            [[0], [3]]
        )

        assert [[1, 2, 3, 4, 5], [4, 5]] == result.ids
        assert [2] == policy.rows
        assert [(3, (3, 3), (3, 0))] == [(r.allowed, r.drafted, r.accepted) for r in policy.heard]
        assert all(r.target_seconds > 0 and r.other_seconds > 0 for r in policy.heard)

    def test_a_policy_that_breaks_loses_no_token(self) -> None:
        """The step's outputs were delivered before, and the next call is right."""

        @attrs.define(eq=False)
        class Broken(Policy):
            def learn(self, outcome: SpeculationStep) -> None:
                super().learn(outcome)
                if len(self.heard) == 1:
                    raise RuntimeError("broken")

        right = Says(lambda rows: Draft(torch.tensor([[2, 3]])))
        speculating, said = generator(drafter=right, num_draft_tokens=Broken([2])), []
        with contextlib.suppress(RuntimeError):
            for event in speculating.stream([0]):
                said += event.ids

        assert [1, 2, 3, 4] == said
        assert [[1, 2, 3, 4, 5, 6]] == speculating([0]).ids

    def test_a_policy_that_says_nought_is_plain_decoding(self) -> None:
        """The drafter is not called; the policy learns of each step that had room for a draft."""
        policy = Policy([0])
        result = generator(drafter=Says(lambda rows: 1 / 0), num_draft_tokens=policy)([1])

        assert [[2, 3, 4, 5, 6, 7]] == result.ids
        assert [(0, (0,), (0,), 0.0)] * 4 == [
            (r.allowed, r.drafted, r.accepted, r.draft_seconds) for r in policy.heard
        ]

    @pytest.mark.parametrize(("end", "gained"), [(2, 0), (3, 1), (4, 2)])
    def test_a_policy_learns_of_what_a_stop_leaves(self, end: int, gained: int) -> None:
        """Draft tokens behind it are accepted for nothing."""
        policy = Policy([3])
        says = Says(lambda rows: Draft(torch.tensor([[2, 3, 4]])))
        result = generator(drafter=says, num_draft_tokens=policy, stop=EndOfSequence(end))([0])

        assert list(range(1, end + 1)) == result.ids[0]
        assert [((gained,), (gained,))] == [(r.drafted, r.accepted) for r in policy.heard]

    @pytest.mark.parametrize(
        ("stop", "room"),
        [
            (MaxNewTokens(2), []),
            (MaxNewTokens(3), [1]),
            (MaxLength(5), [2]),
            (MaxNewTokens(3) | EndOfSequence(8), [1]),
            (EndOfSequence(8) | (MaxLength(5) | MaxNewTokens(9)), [2]),
            (MaxNewTokens(3) & MaxLength(5), [3]),
            (NotBefore(4, MaxNewTokens(2)), [3]),
        ],
    )
    def test_no_token_is_drafted_beyond_a_limit(self, stop: StopCondition, room: list[int]) -> None:
        """Not the last either: it is the target's own."""
        policy = Policy([3])
        budgets: list[list[int]] = []
        result = generator(drafter=Counting(budgets), num_draft_tokens=policy, stop=stop)([0])

        assert generator(stop=stop)([0]).ids == result.ids
        assert [[each] for each in room] == budgets

    def test_each_row_has_room_up_to_its_own_limit(self) -> None:
        """A row without room is not drafted for, in a step in which another is."""
        budgets: list[list[int]] = []
        result = generator(drafter=Counting(budgets), stop=MaxNewTokens([2, 5]))([[0], [1]])

        assert [[1, 2], [2, 3, 4, 5, 6]] == result.ids
        assert [[0, 3]] == budgets

    def test_a_policy_learns_how_deep_a_tree_was(self) -> None:
        """The length that it decides, whatever the number of nodes."""
        policy = Policy([2])
        tree = Draft(torch.tensor([[2, 5, 3]]), parents=torch.tensor([[-1, -1, 0]]))
        generator(drafter=Says(lambda rows: tree, tree_nodes=6), num_draft_tokens=policy)([0])

        assert 2 == policy.heard[0].longest

    def test_a_policy_learns_of_the_step_after_which_the_reader_leaves(self) -> None:
        """As of every other."""
        policy = Policy([3])
        says = Says(lambda rows: Draft(torch.tensor([[2, 3, 4]])))
        events = generator(drafter=says, num_draft_tokens=policy).stream([0])
        next(events)
        next(events)
        events.close()

        assert [((3,), (3,))] == [(r.drafted, r.accepted) for r in policy.heard]

    @pytest.mark.parametrize("allowed", [-1, 4, 1.5, None])
    def test_a_policy_has_to_say_what_it_may(self, allowed: Any) -> None:
        """Neither less than nothing, nor more than the decoder was found to score."""
        drafting = generator(drafter=Says(None), num_draft_tokens=Policy([allowed]))
        with pytest.raises(ValueError, match=rf"must say whole numbers >= 0 and <= 3: got {allowed}"):
            drafting([1])

    def test_a_tree_is_cut_at_the_budget_and_at_what_is_no_id(self) -> None:
        """With what follows from there; the rest is verified."""
        tree = Draft(torch.tensor([[2, 99, 3, 4, 3, 4]]), parents=torch.tensor([[-1, 0, 0, 1, 2, 2]]))
        result = generator(drafter=Says(lambda rows: tree, tree_nodes=6), num_draft_tokens=2)([1])

        assert [[2, 3, 4, 5, 6, 7]] == result.ids

    def test_a_tree_is_cut_to_what_the_decoder_scores(self) -> None:
        """Its last draft tokens are dropped first."""
        tree = Draft(torch.arange(9).repeat(1, 1), parents=torch.arange(-1, 8).repeat(1, 1))
        says = Says(lambda rows: tree, tree_nodes=3)
        counted = generator(drafter=says, num_draft_tokens=9, stop=EndOfSequence(6))([0])

        assert [[1, 2, 3, 4, 5, 6]] == counted.ids
        assert 7 == len(counted.statistics.drafted)

    def test_gaps_in_a_tree_do_not_hide_how_deep_it_is(self) -> None:
        """What lies behind one is beyond the budget as it would be without, up to the last position."""
        tree = Draft(torch.tensor([[2, -1, -1, 3, 4, 5]]), parents=torch.tensor([[-1, -1, -1, 0, 3, 4]]))
        drafting = {"drafter": Says(lambda rows: tree, tree_nodes=6), "stop": MaxNewTokens(99)}
        one = generator(num_draft_tokens=2, **drafting)([1])
        last = generator(num_draft_tokens=4, **drafting)([1] * 60 + [0])

        assert 2 == len(one.statistics.drafted)
        assert [[1, 2, 3, 4]] == last.ids

    def test_a_chain_among_trees_is_cut_to_what_the_decoder_scores(self) -> None:
        """A tree may go further ahead than a chain."""
        target = ScriptedDecoder(COUNTING, line=last_token, widths=(1, 3), scored_width=3, tree_widths=(8,))
        chain = Says(lambda rows: Draft(torch.tensor([[3, 4, 5, 6]])), tree_nodes=4)
        result = Generator(target, drafter=chain, num_draft_tokens=4, stop=MaxNewTokens(6))([1])

        assert [[2, 3, 4, 5, 6, 7]] == result.ids
        assert 2 == len(result.statistics.drafted)

    def test_a_tree_out_of_the_blue_is_refused_by_rejection(self) -> None:
        """When trees were not declared."""
        tree = Draft(torch.tensor([[2]]), parents=torch.tensor([[-1]]))
        drafting = generator(
            drafter=Says(lambda rows: tree), verification=RejectionSampling(), sampler=Sample(seed=0)
        )

        with pytest.raises(ValueError, match=r"RejectionSampling\(\) takes no trees"):
            drafting([1])

    def test_a_tree_out_of_the_blue_needs_a_decoder_that_scores_it(self) -> None:
        """It is not dropped without a word."""
        tree = Draft(torch.tensor([[2]]), parents=torch.tensor([[-1]]))
        target = ScriptedDecoder(COUNTING, line=last_token)
        drafting = Generator(target, drafter=Says(lambda rows: tree), stop=MaxNewTokens(6))

        with pytest.raises(ValueError, match=r"the decoder must score trees: got one from Says"):
            drafting([1])

    def test_rejection_takes_no_trees(self) -> None:
        """Refused when the generator is built."""
        with pytest.raises(ValueError, match="'verification' must take trees, as ExactMatch does"):
            generator(
                drafter=Says(None, tree_nodes=3), verification=RejectionSampling(), sampler=Sample(seed=0)
            )
