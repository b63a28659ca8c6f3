"""Requests of one table that share a draft length policy."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from decodekit.decoding import Batcher, Generator, History, MaxNewTokens, SpeculationStep
from decodekit.speculation import AdaptiveLength, DraftModel, PromptLookup
from decodekit.testing import ScriptedDecoder, last_token

# Tokens repeat after four.
CYCLE = torch.eye(4).roll(1, dims=1) * 30


@attrs.define(eq=False)
class Policy:
    """Allows two draft tokens where there is evidence, and records what it is asked and told."""

    most: int = 2
    asked: list[Any] = attrs.field(factory=list)
    heard: list[SpeculationStep] = attrs.field(factory=list)

    def __call__(self, rows: int) -> int:
        self.asked.append(rows)
        return self.most

    def learn(self, outcome: SpeculationStep) -> None:
        self.heard.append(outcome)


class Weighing(Policy):
    """The same, by evidence."""

    def weigh(self, evidence: Sequence[int]) -> list[int]:
        """Two where a row has some."""
        self.asked.append(tuple(evidence))
        return [self.most if each else 0 for each in evidence]


def serve(*policies: Any, plain: int = 0) -> ScriptedDecoder:
    """Serve a request that repeats itself for each of *policies*, and so many without drafts."""
    decoder = ScriptedDecoder(CYCLE, batch_size=len(policies) + plain, line=last_token)
    stop = MaxNewTokens(7)
    drafted = [
        Generator(decoder, drafter=PromptLookup(), num_draft_tokens=one, stop=stop) for one in policies
    ]
    requests = [*drafted, *[Generator(decoder, stop=stop)] * plain]
    batcher = Batcher(decoder)
    handles = [batcher.submit(one.parts, [0, 1, 2, 3, 0, 1]) for one in requests]
    for handle in handles:
        assert [[2, 3, 0, 1, 2, 3, 0]] == handle.result().ids
    return decoder


class TestAsk:
    def test_a_shared_policy_is_asked_once(self) -> None:
        """For all rows of its requests together, and told once of all of them."""
        policy = Policy()
        serve(policy, policy)

        assert [2, 2] == policy.asked
        assert [((2, 2), (2, 2))] * 2 == [(one.drafted, one.accepted) for one in policy.heard]

    def test_delayed_rows_are_counted(self) -> None:
        """Without evidence too, for a policy that weighs them."""

        @attrs.define(eq=False)
        class Beside(Policy):
            def length_beside(self, rows: int, delayed: int) -> int:
                self.asked.append((rows, delayed))
                return self.most

        policy = Beside()
        serve(policy, policy, plain=1)

        assert (2, 1) == policy.asked[0]
        assert ((2, 2), 1) == (policy.heard[0].drafted, policy.heard[0].delayed)

    def test_prefill_of_a_drafter_is_told(self) -> None:
        """A newcomer's prompt is fed to the draft model by parts, in which steps it has no draft."""
        target, draft = (
            ScriptedDecoder(CYCLE, 2, widths=(1, 4), scored_width=4, line=last_token) for _ in range(2)
        )
        policy = Policy()
        generator = Generator(
            target, drafter=DraftModel(draft), num_draft_tokens=policy, stop=MaxNewTokens(40)
        )
        batcher = Batcher(target, prefill_width=4)
        first = batcher.submit(generator.parts, [0, 1, 2, 3])
        next(iter(first))
        second = batcher.submit(generator.parts, [0, 1, 2, 3] * 8)
        first.result()
        second.result()
        late = [one for one in policy.heard if one.catching_up == (False, True)]

        assert late
        assert {(2, 0)} == {one.drafted for one in late}
        assert all(all(one.drafted) for one in policy.heard if one.catching_up is None)

    def test_prefill_of_a_short_prompt_is_told(self) -> None:
        """It is fed in the step of the first draft."""
        target, draft = (
            ScriptedDecoder(CYCLE, 2, widths=(1, 4, 16), scored_width=4, line=last_token) for _ in range(2)
        )
        policy = Policy()
        generator = Generator(
            target, drafter=DraftModel(draft), num_draft_tokens=policy, stop=MaxNewTokens(40)
        )
        batcher = Batcher(target, prefill_width=16)
        first = batcher.submit(generator.parts, [0, 1, 2, 3])
        events = iter(first)
        for _ in range(3):
            next(events)
        second = batcher.submit(generator.parts, [0, 1, 2, 3] * 2)
        first.result()
        second.result()
        told = [one for one in policy.heard if one.catching_up is not None]

        assert [(True,), (False, True)] == [one.catching_up for one in told]
        assert all(all(one.drafted) for one in told)

    @pytest.mark.parametrize("width", [16, 4])
    def test_prefill_is_told_where_a_neighbour_raises(self, width: int) -> None:
        """The draft model is asked again, and has been fed the prompt in this step all the same."""

        def breaks(logits: Tensor, history: History) -> Tensor:
            if history.num_generated().max() > 0:
                raise LookupError("broken")
            return logits

        target, draft = (
            ScriptedDecoder(CYCLE, 2, widths=(1, 4, 16), scored_width=4, line=last_token) for _ in range(2)
        )
        policy = Policy()
        parts: dict[str, Any] = {"drafter": DraftModel(draft), "stop": MaxNewTokens(12)}
        generator = Generator(target, num_draft_tokens=policy, **parts)
        broken = Generator(target, num_draft_tokens=Policy(), processors=breaks, **parts)
        batcher = Batcher(target, prefill_width=width)
        one = batcher.submit(generator.parts, [0, 1, 2, 3])
        other = batcher.submit(broken.parts, [0, 1, 2, 3])

        assert [[0, 1, 2, 3] * 3] == one.result().ids
        with pytest.raises(LookupError, match="broken"):
            other.result()
        assert [(True,), None] == [key for key, _ in groupby(told.catching_up for told in policy.heard)]

    def test_an_override_of_an_adaptive_length_is_asked(self) -> None:
        """Where no other row waits."""

        class Own(AdaptiveLength):
            def __call__(self, rows: int) -> int:
                asked.append(rows)
                return 1

        asked: list[int] = []
        decoder = ScriptedDecoder(CYCLE, widths=(1, 4), scored_width=4, line=last_token)
        draft = DraftModel(ScriptedDecoder(CYCLE, line=last_token))
        Generator(decoder, drafter=draft, num_draft_tokens=Own(3), stop=MaxNewTokens(6))([0])

        assert {1} == set(asked)

    def test_the_first_draft_of_a_lone_request_is_told(self) -> None:
        """The draft model is fed the whole prompt in it."""
        target, draft = (
            ScriptedDecoder(CYCLE, widths=(1, 4), scored_width=4, line=last_token) for _ in range(2)
        )
        policy = Policy()
        parts = {"drafter": DraftModel(draft), "num_draft_tokens": policy, "stop": MaxNewTokens(12)}
        generator = Generator(target, **parts)
        generator([0, 1, 2, 3] * 3)
        generator([3, 2, 1, 0] * 3)

        assert [(True,), None] * 2 == [key for key, _ in groupby(one.catching_up for one in policy.heard)]

    def test_policies_of_their_own_are_asked_each(self) -> None:
        """For their own rows, and told how long the longest draft of the step was."""
        short, long = Policy(1), Policy(2)
        serve(short, long)

        assert [1] == list(dict.fromkeys(short.asked))
        assert ((1,), 2) == (short.heard[0].drafted, short.heard[0].longest)

    def test_rows_without_drafts_have_no_evidence(self) -> None:
        """They wait for the longer forward too, so that a policy weighs them."""
        policy = Weighing()
        serve(policy, policy, plain=1)

        assert 3 == len(policy.asked[0])
        assert 0 == policy.asked[0][2] < min(policy.asked[0][:2])
        assert ((2, 2, 0), (2, 2, 0), 0) == (
            policy.heard[0].drafted,
            policy.heard[0].accepted,
            policy.heard[0].evidence[2],
        )

    def test_rows_have_lengths_of_their_own(self) -> None:
        """A policy by evidence may leave rows out, and is told of all tokens of a step."""

        class Choosing(Weighing):
            def weigh(self, evidence: Sequence[int]) -> list[int]:
                return [2, 0, 1][: len(evidence)]

        policy = Choosing()
        serve(policy, policy, policy)

        assert ((2, 0, 1), (2, 0, 1), 2, 2, 3) == (
            policy.heard[0].drafted,
            policy.heard[0].accepted,
            policy.heard[0].allowed,
            policy.heard[0].longest,
            policy.heard[0].total,
        )

    def test_rows_of_one_request_have_lengths_of_their_own(self) -> None:
        """Each of its prompts."""

        class First(Weighing):
            def weigh(self, evidence: Sequence[int]) -> list[int]:
                return [2, *[0] * (len(evidence) - 1)]

        policy = First()
        generator = Generator(
            ScriptedDecoder(CYCLE, batch_size=2, line=last_token),
            drafter=PromptLookup(),
            num_draft_tokens=policy,
            stop=MaxNewTokens(7),
        )
        result = generator([[0, 1, 2, 3, 0, 1]] * 2)

        assert [[2, 3, 0, 1, 2, 3, 0]] * 2 == result.ids
        assert (2, 0) == policy.heard[0].drafted

    def test_a_row_in_prefill_is_delayed_too(self) -> None:
        """It has no evidence, and counts in what is told."""
        policy = Weighing()
        decoder = ScriptedDecoder(CYCLE, batch_size=2, line=last_token)
        generator = Generator(decoder, drafter=PromptLookup(), num_draft_tokens=policy, stop=MaxNewTokens(12))
        batcher = Batcher(decoder, prefill_width=2)
        first = batcher.submit(generator.parts, [0, 1, 2, 3, 0, 1])
        events = iter(first)
        next(events)
        second = batcher.submit(generator.parts, [0, 1, 2, 3] * 8)
        first.result()
        second.result()
        asked = [evidence for evidence in policy.asked if len(evidence) == 2]

        assert any(evidence[0] and not evidence[1] for evidence in asked)
        assert (
            {len(one.evidence or ()) for one in policy.heard}
            == {len(one.drafted) for one in policy.heard}
            == {1, 2}
        )

    @pytest.mark.parametrize("said", [[2], 2, [2, 2, 2]])
    def test_a_length_for_each_row_is_required(self, said: Any) -> None:
        """A number for all of them, too few, and too many are refused."""

        class Wrong(Weighing):
            def weigh(self, evidence: Sequence[int]) -> Any:
                return said

        policy = Wrong()
        with pytest.raises(ValueError, match=r"draft lengths by evidence must be 2 numbers, one a row: got "):
            serve(policy, policy)

    def test_what_drafts_would_have_begun_with_is_told(self) -> None:
        """Where none is made, too; and rows without drafts foresee nothing."""

        class Waiting(Weighing):
            def weigh(self, evidence: Sequence[int]) -> list[int]:
                return [0] * len(evidence)

        policy = Waiting()
        serve(policy, policy, plain=1)

        assert {(True, True, False)} == {one.foreseen for one in policy.heard}
        assert {(0, 0, 0)} == {one.drafted for one in policy.heard}

    def test_tokens_that_were_not_foreseen_are_told(self) -> None:
        """The cycle ends where the prompt's repetition was of another one."""
        policy = Weighing()
        generator = Generator(
            ScriptedDecoder(CYCLE, line=last_token),
            drafter=PromptLookup(),
            num_draft_tokens=policy,
            stop=MaxNewTokens(7),
        )
        generator([0, 1, 3, 0])

        # 1, 2 and not 3.
        assert [False] == [one.foreseen[0] for one in policy.heard if one.foreseen][:1]

    def test_a_policy_that_pauses_is_not_asked_nor_its_drafter(self) -> None:
        """In the steps that it does without; requests with another policy draft on."""

        class Pausing(Weighing):
            steps = 0

            def wants_evidence(self) -> bool:
                self.steps += 1
                return self.steps % 2 == 0

        class Counting(PromptLookup):
            looked = 0

            def foresee(self, history: Any, budget: Any) -> Any:
                Counting.looked += 1
                return super().foresee(history, budget)

        pausing, other = Pausing(), Weighing()
        decoder = ScriptedDecoder(CYCLE, batch_size=2, line=last_token)
        batcher, stop = Batcher(decoder), MaxNewTokens(7)
        parts = [
            Generator(decoder, drafter=Counting(), num_draft_tokens=pausing, stop=stop),
            Generator(decoder, drafter=PromptLookup(), num_draft_tokens=other, stop=stop),
        ]
        handles = [batcher.submit(one.parts, [0, 1, 2, 3, 0, 1]) for one in parts]

        assert [[2, 3, 0, 1, 2, 3, 0]] * 2 == [handle.result().ids[0] for handle in handles]
        assert len(pausing.asked) == Counting.looked == pausing.steps // 2 > 0
        assert len(other.asked) > 0

    def test_a_policy_that_pauses_alone_is_told_nothing(self) -> None:
        """Of steps in which nothing else asks, either; the text is plain decoding's."""

        class Asleep(Weighing):
            def wants_evidence(self) -> bool:
                return False

        policy, decoder = Asleep(), ScriptedDecoder(CYCLE, line=last_token)
        parts = {"drafter": PromptLookup(), "num_draft_tokens": policy, "stop": MaxNewTokens(7)}
        generated = Generator(decoder, **parts)([0, 1, 2, 3, 0, 1])

        assert (2, 3, 0, 1, 2, 3, 0) == tuple(generated.ids[0])
        assert ([], []) == (policy.asked, policy.heard)

    def test_a_shared_drafter_is_asked_for_its_evidence_once(self) -> None:
        """In a step, with each request's budget in its own rows and none in those of others."""
        budgets = []

        class Records(PromptLookup):
            def foresee(self, history: Any, budget: Any) -> Any:
                budgets.append(budget.tolist())
                return super().foresee(history, budget)

        shared, short, long = Records(), Weighing(1), Weighing(2)
        decoder = ScriptedDecoder(CYCLE, batch_size=3, line=last_token)
        batcher, stop = Batcher(decoder), MaxNewTokens(7)
        parts = [
            Generator(decoder, drafter=shared, num_draft_tokens=short, stop=stop),
            Generator(decoder, stop=stop),
            Generator(decoder, drafter=shared, num_draft_tokens=long, stop=stop),
        ]
        handles = [batcher.submit(one.parts, [0, 1, 2, 3, 0, 1]) for one in parts]

        assert [[2, 3, 0, 1, 2, 3, 0]] * 3 == [handle.result().ids[0] for handle in handles]
        assert [1, 0, 2] == budgets[0]
        assert len(budgets) == max(len(short.asked), len(long.asked))

    @pytest.mark.parametrize("wrong", ["evidence", "tokens", "type", "dtype", "raises"])
    def test_a_wrong_answer_of_a_drafter_ends_its_own_requests(self, wrong: str) -> None:
        """And says what is wrong; a request beside it goes on."""

        class Wrong(PromptLookup):
            def foresee(self, history: Any, budget: Any) -> Any:
                evidence, tokens = super().foresee(history, budget)
                if wrong == "raises":
                    raise RuntimeError("no drafts")
                return {
                    "evidence": (evidence[:-1], tokens),
                    "tokens": (evidence, tokens[:-1]),
                    "type": (evidence.tolist(), tokens),
                    "dtype": (evidence.float(), tokens),
                }[wrong]

        decoder, stop = ScriptedDecoder(CYCLE, batch_size=2, line=last_token), MaxNewTokens(5)
        batcher = Batcher(decoder)
        parts = [
            Generator(decoder, drafter=Wrong(), num_draft_tokens=Weighing(), stop=stop),
            Generator(decoder, stop=stop),
        ]
        handles = [batcher.submit(one.parts, [0, 1, 2, 3, 0, 1]) for one in parts]

        assert [[2, 3, 0, 1, 2]] == handles[1].result().ids
        with pytest.raises((ValueError, RuntimeError), match=r"int64 tensors \[2\]: got|no drafts"):
            handles[0].result()

    def test_a_policy_whose_pause_raises_ends_its_own_requests(self) -> None:
        """And no other."""

        class Broken(Weighing):
            def wants_evidence(self) -> bool:
                raise RuntimeError("no pause")

        decoder, stop = ScriptedDecoder(CYCLE, batch_size=2, line=last_token), MaxNewTokens(5)
        batcher = Batcher(decoder)
        parts = [
            Generator(decoder, drafter=PromptLookup(), num_draft_tokens=one, stop=stop)
            for one in (Broken(), Weighing())
        ]
        handles = [batcher.submit(one.parts, [0, 1, 2, 3, 0, 1]) for one in parts]

        assert [[2, 3, 0, 1, 2]] == handles[1].result().ids
        assert "RuntimeError('no pause')" == _error(handles[0])

    def test_drafters_without_evidence_are_not_paused(self) -> None:
        """A policy that they share with one that has some decides without it."""

        class Pausing(Weighing):
            def wants_evidence(self) -> bool:
                return False

        class Bare:
            def propose(self, history: Any, budget: Any, sample: Any) -> Any:
                return PromptLookup().propose(history, budget, sample)

        policy = Pausing()
        decoder, stop = ScriptedDecoder(CYCLE, batch_size=2, line=last_token), MaxNewTokens(7)
        batcher = Batcher(decoder)
        parts = [
            Generator(decoder, drafter=one, num_draft_tokens=policy, stop=stop)
            for one in (PromptLookup(), Bare())
        ]
        handles = [batcher.submit(one.parts, [0, 1, 2, 3, 0, 1]) for one in parts]

        assert [[2, 3, 0, 1, 2, 3, 0]] * 2 == [handle.result().ids[0] for handle in handles]
        assert 2 in policy.asked

    def test_a_policy_that_raises_ends_the_requests_that_share_it(self) -> None:
        """And no other."""

        class Broken(Policy):
            def __call__(self, rows: int) -> int:
                raise RuntimeError("no length")

        decoder, stop, broken = (
            ScriptedDecoder(CYCLE, batch_size=3, line=last_token),
            MaxNewTokens(5),
            Broken(),
        )
        options = {"drafter": PromptLookup(), "stop": stop}
        requests = [Generator(decoder, num_draft_tokens=one, **options) for one in (broken, broken, 2)]
        batcher = Batcher(decoder)
        handles = [batcher.submit(one.parts, [0, 1, 2, 3, 0, 1]) for one in requests]

        assert [[2, 3, 0, 1, 2]] == handles[2].result().ids
        assert ["RuntimeError('no length')"] * 2 == [_error(handle) for handle in handles[:2]]


def _error(handle: Any) -> str | None:
    try:
        handle.result()
    except RuntimeError as error:
        return repr(error)
    return None
