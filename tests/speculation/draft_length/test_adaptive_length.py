"""Adaptive draft length: on simulated times against the best fixed length, and in the loop."""

import copy
import gc
import pickle
import random
import threading
from collections.abc import Callable
from itertools import accumulate, pairwise
from operator import mul
from statistics import mean
from typing import Any

import attrs
import pytest
import torch

from decodekit.decoding import Generator, Greedy, MaxNewTokens, Sample, SpeculationStep
from decodekit.decoding.cache.slots import Slots
from decodekit.decoding.protocols import Drafter
from decodekit.decoding.strategies.combined import Combined
from decodekit.speculation import AdaptiveLength, DraftModel, PromptLookup, SpeculativeGenerator
from decodekit.speculation.draft_length import step_seconds, timed_widths
from decodekit.testing import ScriptedDecoder

UNIT = 0.01
"""Seconds of a forward of width 1."""

SMOOTH = {width: 1 + 0.03 * (width - 1) for width in range(1, 10)}
STEPS = {1: 1.0, 5: 1.3, 9: 1.6}


class SkippingDecoder(ScriptedDecoder):
    """One that says that it does not compute padding."""

    skips_padding = True


def widths_that_took(seconds: dict[int, float]) -> list[timed_widths.TimedWidth]:
    """Widths whose forwards take the *seconds*, with padding as without."""
    return [timed_widths.TimedWidth(width, width, full, full) for width, full in seconds.items()]


def timed(monkeypatch: pytest.MonkeyPatch, idle: dict[int, float]) -> step_seconds.StepSeconds:
    """The seconds of a decoder whose forwards took *idle* by width when they were timed."""
    timings = widths_that_took(idle)
    monkeypatch.setattr(step_seconds, "time_widths", lambda decoder, exact_width: timings)
    seconds = step_seconds.StepSeconds()
    seconds.prepare(ScriptedDecoder(torch.zeros(1, 2)), exact_width=False)
    return seconds


@attrs.frozen(eq=False)
class World:
    """Rows whose draft tokens have given acceptance rates, and a machine with given costs, in forwards."""

    acceptance: Callable[[int, int, int], float]
    """Acceptance rate by token, row and place in the draft."""

    widths: dict[int, float] = attrs.field(factory=lambda: SMOOTH)
    token: float = 0.1
    setup: float = 0.0
    drafts: float = 1.0
    """How often there is a draft."""

    rows: int = 1
    catch_up: Callable[[int], float] = lambda gap: 0.1 if gap <= 4 else 0.3
    prompt: float = 0.5
    """Time of the draft model's prefill."""

    host: float = 0.02

    def verify(self, length: int) -> float:
        return self.host + min(cost for width, cost in self.widths.items() if width > length)

    def policy(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> AdaptiveLength:
        """A policy prepared with this world's times."""
        seconds = {width: cost * UNIT for width, cost in self.widths.items()}
        timings = widths_that_took(seconds)
        monkeypatch.setattr(step_seconds, "time_widths", lambda decoder, exact_width: timings)
        # An allowance that rarely binds: what is compared is what the policy learns.
        policy = AdaptiveLength(**{"most": 8, "allowance": 8, "share": 0.005, **options})
        policy.prepare(ScriptedDecoder(torch.zeros(1, 2)))
        return policy

    def run(self, policy: Callable[[int], int], tokens: int, seed: int) -> tuple[float, list[int]]:
        """Speed relative to plain decoding (over all rows), and the lengths used."""
        dice, length, time, lengths = random.Random(seed), [0] * self.rows, 0.0, []
        gap: int | None = None
        while sum(length) < tokens * self.rows:
            k = policy(self.rows)
            lengths.append(k)
            drafted = [k if dice.random() < self.drafts else 0 for _ in length]
            accepted = [self._accepted(dice, length[row], row, n) for row, n in enumerate(drafted)]
            draft = self.setup + self.token * max(drafted) if k else 0.0
            if k:
                draft += self.prompt if gap is None else self.catch_up(gap) if gap else 0.0
            gap = 0 if k else None if gap is None else gap + 1
            verify = self.verify(max(drafted))
            time += draft + verify
            noise = [UNIT * dice.gauss(1, 0.05) * (5 if dice.random() < 0.01 else 1) for _ in range(2)]
            if isinstance(policy, AdaptiveLength):
                seconds = (draft * noise[0], (verify - self.host) * noise[1], self.host * UNIT)
                policy.learn(SpeculationStep(k, tuple(drafted), tuple(accepted), *seconds))
            length = [n + 1 + more for n, more in zip(length, accepted, strict=True)]
        return sum(length) / self.rows / time * self.verify(0), lengths

    def _accepted(self, dice: random.Random, token: int, row: int, length: int) -> int:
        count = 0
        while count < length and dice.random() < self.acceptance(token, row, count):
            count += 1
        return count

    def fixed(self, k: int) -> float:
        """Speed of *k* draft tokens in every step, for rates that do not depend on the token."""
        rates = [[self.acceptance(0, row, i) for i in range(k)] for row in range(self.rows)]
        nothing = (1 - self.drafts) ** self.rows
        draft = self.setup * (k > 0) + (1 - nothing) * self.token * k
        verify = nothing * self.verify(0) + (1 - nothing) * self.verify(k)
        tokens = 1 + self.drafts * mean(sum(accumulate(row, mul)) for row in rates)
        return tokens / (draft + verify) * self.verify(0)


def always(rate: float) -> Callable[[int, int, int], float]:
    return lambda token, row, place: rate


WORLDS = {
    "good": World(always(0.9)),
    "falling": World(lambda token, row, place: 0.9 - 0.07 * place),
    "rising": World(lambda token, row, place: 0.6 + 0.08 * min(place, 4)),
    "middling": World(always(0.7), token=0.15),
    "poor": World(always(0.4), token=0.15),
    "steps": World(always(0.75), STEPS),
    "expensive": World(always(0.8), token=0.5),
    "lookup": World(always(0.8), token=0.002, setup=0.005, drafts=0.3, prompt=0.0, catch_up=lambda gap: 0.0),
    "lookup, steps": World(
        always(0.6),
        STEPS,
        token=0.002,
        setup=0.005,
        drafts=0.3,
        prompt=0.0,
        catch_up=lambda gap: 0.0,
    ),
    "ragged batch": World(lambda token, row, place: 0.3 + 0.08 * row, token=0.15, rows=8),
}
USELESS = {
    "cheap": World(always(0.0)),
    "steps": World(always(0.0), STEPS, token=0.15),
    "slow to catch up": World(
        always(0.0), STEPS, token=0.15, prompt=1.2, catch_up=lambda gap: 0.15 if gap <= 4 else 1.2
    ),
    "half the target": World(
        always(0.0), token=0.5, prompt=2.0, catch_up=lambda gap: 0.5 if gap <= 4 else 1.0
    ),
    "good but slower than the target": World(always(0.8), token=1.2, catch_up=lambda gap: 1.2),
    "batch": World(always(0.0), {width: 1 + 0.1 * (width - 1) for width in SMOOTH}, token=0.15, rows=8),
}


@pytest.mark.mostly_slow(every=3)
class TestAgainstTheBestFixedLength:
    @pytest.mark.parametrize("name", WORLDS)
    def test_is_within_a_few_percent_of_it(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Over 512 tokens, learning included."""
        world = WORLDS[name]
        best = max(world.fixed(k) for k in range(9))
        speeds = [world.run(world.policy(monkeypatch), 512, seed)[0] for seed in range(12)]

        assert best > 1.15
        assert mean(speeds) > 0.955 * best

    @pytest.mark.parametrize("name", ["good", "falling", "middling", "ragged batch", "lookup, steps"])
    def test_is_so_from_the_first_tokens_on(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Over the first 60 tokens, compared with the same length from the first step on."""
        world = WORLDS[name]
        best = max(range(9), key=world.fixed)
        first = [world.run(world.policy(monkeypatch), 60, seed)[0] for seed in range(40)]
        fixed = [world.run(lambda rows: best, 60, seed)[0] for seed in range(40)]

        assert mean(first) > 0.94 * mean(fixed)

    def test_tries_that_pay_go_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where verification is so expensive that a draft pays only above its prior acceptance rate."""
        world = World(always(0.92), {1: 1.0, 2: 2.0, 3: 2.15, 5: 2.5, 9: 3.4}, token=0.05)
        best = max(world.fixed(k) for k in range(9))
        speeds = [world.run(world.policy(monkeypatch), 768, seed)[0] for seed in range(12)]

        assert mean(speeds) > 0.89 * best

    @pytest.mark.parametrize("name", USELESS)
    def test_a_useless_draft_costs_two_percent_at_most(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Against plain decoding over 512 tokens, for every seed, prompt and trials included."""
        world = USELESS[name]
        worst = min(world.run(world.policy(monkeypatch), 512, seed)[0] for seed in range(12))

        assert worst > 0.98 if "good" not in name else worst > 0.97

    def test_a_useless_draft_is_hardly_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Trials become rarer: one in a hundred steps over 4,000 tokens."""
        world = USELESS["steps"]
        _, lengths = world.run(world.policy(monkeypatch), 4000, 1)
        tried = [i for i, k in enumerate(lengths) if k]

        assert len(tried) < 45
        assert tried[-1] > 3500

    def test_each_vain_try_doubles_the_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With savings for any trial, 4 steps pass before the first, then 8, up to 128."""
        world = USELESS["cheap"]
        _, lengths = world.run(world.policy(monkeypatch, allowance=1e6), 600, 0)
        tried = [i for i, k in enumerate(lengths) if k]
        waits = [after - before - 1 for before, after in pairwise(tried) if after - before > 1]

        assert [4, 8, 16, 32, 64, 128, 128] == waits[:7]

    def test_what_it_knows_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second run begins where the first one ended."""
        good, useless = WORLDS["good"], USELESS["cheap"]
        policies = [good.policy(monkeypatch), useless.policy(monkeypatch)]
        good.run(policies[0], 512, 0)
        useless.run(policies[1], 512, 0)

        assert policies[0](1) >= 5
        assert policies[1](1) <= 1
        assert 0 == sorted(useless.run(policies[1], 64, 1)[1])[32]


class TestChanges:
    def test_follows_a_draft_that_becomes_good(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Useless for 250 tokens, good for 500: most of the possible speed-up is reached."""
        world = World(lambda token, row, place: 0.0 if token < 250 else 0.85)
        speeds = [world.run(world.policy(monkeypatch), 750, seed)[0] for seed in range(12)]
        best = 750 / (250 + 500 / max(World(always(0.85)).fixed(k) for k in range(9)))

        assert mean(speeds) > 0.85 * best

    def test_finds_a_draft_that_becomes_cheap(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Slower than the target until nothing could pay, then a tenth of its time."""
        policy = USELESS["good but slower than the target"].policy(monkeypatch)
        USELESS["good but slower than the target"].run(policy, 512, 7)
        assert policy(1) == 0
        _, lengths = WORLDS["good"].run(policy, 2000, 7)

        assert mean(lengths[-50:]) > 4

    def test_finds_a_draft_that_becomes_cheap_beside_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Too expensive for one row of eight at first: the price is measured again."""
        policy = World(always(0.9)).policy(monkeypatch)
        for _ in range(4):
            policy.learn(SpeculationStep(8, (8,), (8,), 8 * UNIT, UNIT, 0.0))
        speeds = policy.tokens_per_second(1, delayed=7)
        tried = []
        for _ in range(5000):
            k = policy.length_beside(1, 7)
            tried.append(k)
            seconds = 0.02 * k * UNIT, (1 + 0.001 * k) * UNIT
            policy.learn(SpeculationStep(k, (k,), (k,), *seconds, 0.0, delayed=7))

        assert max(speeds) == speeds[0]
        assert mean(tried[-50:]) > 4

    def test_leaves_a_draft_that_becomes_useless(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Good for 250 tokens, useless for 500: the loss stays within the allowance."""
        world = World(lambda token, row, place: 0.85 if token < 250 else 0.0)
        for seed in range(12):
            policy = world.policy(monkeypatch)
            world.run(policy, 250, seed)
            useless, lengths = USELESS["cheap"].run(policy, 500, seed)

            assert 500 / useless < 500 + policy.allowance + policy.allowance / 4 + 0.005 * 500 + 1
            assert sum(k > 0 for k in lengths[60:]) < 20

    def test_a_slow_step_changes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of the target or of the draft, even if a hundred times as slow."""
        world = WORLDS["middling"]
        policy = world.policy(monkeypatch)
        world.run(policy, 200, 0)
        before = policy(1)
        policy.learn(SpeculationStep(before, (before,), (2,), 0.15 * UNIT * before, 100 * UNIT, 0.0))
        policy.learn(SpeculationStep(before, (before,), (2,), 15 * UNIT * before, UNIT, 0.0))

        assert before > 1
        assert abs(policy(1) - before) <= 1

    def test_seconds_that_were_timed_wrongly_are_corrected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Wide forwards were timed as free, but are too expensive for any draft to pay."""
        world = World(always(0.7), {1: 1.0, 9: 2.9}, token=0.1)
        policy = attrs.evolve(world, widths={1: 1.0, 9: 1.0}).policy(monkeypatch)
        _, lengths = world.run(policy, 400, 0)

        assert 8 >= max(lengths[:5]) > 2
        assert mean(lengths[100:]) < 0.2


class TestWhatItLearns:
    def test_that_what_is_wider_takes_no_less(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Even if the machine has become slower since the wider forwards were timed."""
        seconds = timed(monkeypatch, {1: 1.0, 2: 1.2, 5: 1.5})
        for _ in range(50):
            seconds.learn(SpeculationStep(0, (0,), (0,), 0.0, 4.0, 0.0), 0)

        assert 2.0 < seconds.verify(0) <= seconds.verify(1) <= seconds.verify(4)

    def test_that_fewer_tokens_take_less_where_padding_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A short draft's time does not change the estimate of a long one's."""
        widths = [timed_widths.TimedWidth(1, 1, 1.0, 1.0), timed_widths.TimedWidth(2, 5, 1.2, 1.5)]
        monkeypatch.setattr(step_seconds, "time_widths", lambda decoder, exact_width: widths)
        seconds = step_seconds.StepSeconds()
        seconds.prepare(ScriptedDecoder(torch.zeros(1, 2)), exact_width=False)
        before = [seconds.verify(length) for length in range(5)]
        prices = [price.expected for price in seconds.evidence_prices(4)]
        for _ in range(40):
            seconds.learn(SpeculationStep(1, (1,), (0,), 0.0, 1.2, 0.0), 0)

        assert pytest.approx([1.0, 1.2, 1.3, 1.4, 1.5]) == before
        assert pytest.approx([0.0, 0.2, 0.3, 0.4, 0.5]) == prices
        assert pytest.approx(before) == [seconds.verify(length) for length in range(5)]

    def test_that_rows_may_draft_less_than_the_longest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tokens are the average of the rows: steps that some draft in show what all would take."""
        widths = [timed_widths.TimedWidth(1, 1, 1.0, 1.0), timed_widths.TimedWidth(2, 5, 1.2, 1.8)]
        monkeypatch.setattr(step_seconds, "time_widths", lambda decoder, exact_width: widths)
        seconds = step_seconds.StepSeconds()
        seconds.prepare(ScriptedDecoder(torch.zeros(1, 2)), exact_width=False)
        for _ in range(60):
            seconds.learn(SpeculationStep(4, (4, 0), (0, 0), 0.0, 1.4, 0.0, (9, 9)), 0)
            seconds.learn(SpeculationStep(1, (1, 0), (0, 0), 0.0, 1.1, 0.0, (9, 9)), 0)

        assert pytest.approx([1.2, 1.4, 1.6, 1.8], rel=0.02) == [seconds.verify(k) for k in range(1, 5)]
        price = seconds.evidence_prices(4)[4]
        assert pytest.approx((0.8, 0.4)) == (price.of(1.0)[0], price.of(0.5)[0])

    def test_that_few_tokens_of_a_width_take_little_more_than_a_plain_step(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also of a width for one number of tokens; drafting, 0.1 a token, costs the same for any rows."""
        widths = [
            timed_widths.TimedWidth(1, 1, 1.0, 1.0, True),
            timed_widths.TimedWidth(2, 2, 1.2, 1.2, True),
            timed_widths.TimedWidth(3, 4, 1.4, 1.6),
        ]
        monkeypatch.setattr(step_seconds, "time_widths", lambda decoder, exact_width: widths)
        seconds = step_seconds.StepSeconds()
        seconds.prepare(ScriptedDecoder(torch.zeros(1, 2)), exact_width=False)
        for _ in range(60):
            seconds.learn(SpeculationStep(1, (1, 0, 0, 0), (0,) * 4, 0.1, 1.05, 0.0, (9, 0, 0, 0)), 0)
        prices = seconds.evidence_prices(3)

        assert pytest.approx([1.0, 1.2, 1.4, 1.6], rel=0.02) == [seconds.verify(k) for k in range(4)]
        assert pytest.approx([0.15, 0.3, 0.45], abs=0.02) == [prices[k].of(0.25)[0] for k in (1, 2, 3)]
        assert pytest.approx([0.3, 0.6, 0.9], abs=0.02) == [prices[k].of(1.0)[0] for k in (1, 2, 3)]

    def test_that_other_rows_drafted_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Draft tokens of other policies' rows are part of what a step takes."""
        widths = [timed_widths.TimedWidth(1, 1, 1.0, 1.0), timed_widths.TimedWidth(2, 5, 1.2, 1.8)]
        monkeypatch.setattr(step_seconds, "time_widths", lambda decoder, exact_width: widths)
        seconds = step_seconds.StepSeconds()
        seconds.prepare(ScriptedDecoder(torch.zeros(1, 2)), exact_width=False)
        for _ in range(60):
            seconds.learn(SpeculationStep(0, (0, 0), (0, 0), 0.0, 1.4, 0.0, (0, 0), longest=4, total=4), 0)

        assert pytest.approx([1.0, 1.2, 1.4, 1.6, 1.8], rel=0.02) == [seconds.verify(k) for k in range(5)]

    def test_that_the_first_steps_weigh_more_than_the_first_timing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The machine may have been in another state; an outlier among them changes nothing."""
        seconds = timed(monkeypatch, {1: 1.0, 5: 1.5})
        for spent in (1.6, 16.0, 1.6, 1.6):
            seconds.learn(SpeculationStep(0, (0,), (0,), 0.0, spent, 0.0), 0)

        assert pytest.approx(1.6) == seconds.verify(0)

    def test_that_unused_widths_take_the_same_time_beside_the_forward(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Sampling was seen at one width only."""
        seconds = timed(monkeypatch, {1: 1.0, 5: 1.5})
        seconds.learn(SpeculationStep(0, (0,), (0,), 0.0, 1.0, 0.3), 0)

        assert pytest.approx(1.3) == seconds.verify(0)
        assert pytest.approx(1.8) == seconds.verify(4)

    def test_that_the_machine_is_slower_than_when_it_was_timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The widths that were not used are so, too."""
        seconds = timed(monkeypatch, {1: 1.0, 5: 1.2, 9: 1.4})
        for _ in range(40):
            seconds.learn(SpeculationStep(0, (0,), (0,), 0.0, 2.0, 0.0), 0)

        assert pytest.approx(2.0, rel=0.05) == seconds.verify(0)
        # A tenth more for each column's attention; of the rest, half is the machine's.
        assert pytest.approx((1.2 + 0.5) * (2 / 1.1) ** 0.5, rel=0.05) == seconds.verify(4)
        assert pytest.approx((1.4 + 0.9) * (2 / 1.1) ** 0.5, rel=0.05) == seconds.verify(8)

    def test_that_more_rows_take_longer_at_every_width(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A step of many rows at one width tells of the others, so no draft becomes cheaper than none."""
        seconds = timed(monkeypatch, {1: 1.0, 5: 1.2})
        for k in (0, 4) * 100:
            seconds.learn(SpeculationStep(k, (k,), (0,), 0.0, 1.2 if k else 1.0, 0.1), 0)
        for _ in range(300):
            seconds.learn(SpeculationStep(0, (0,) * 16, (0,) * 16, 0.0, 1.0, 2.0), 0)

            assert seconds.verify(4) > seconds.verify(0)

        assert pytest.approx(3.0, rel=0.02) == seconds.verify(0)
        assert pytest.approx(3.2, rel=0.02) == seconds.verify(4)

    def test_a_time_that_the_clock_does_not_resolve(self) -> None:
        """Of an empty step."""
        seconds = step_seconds.StepSeconds()
        seconds.learn(SpeculationStep(0, (0,), (0,), 0.0, 0.0, 0.0), 0)

        assert 0 < seconds.verify(0) < 1e-6

    def test_that_every_column_attends_to_the_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Which those whose time was taken do not; by no more than a tenth each."""
        seconds = timed(monkeypatch, {1: 1.0, 5: 1.5})
        for _ in range(60):
            seconds.learn(SpeculationStep(0, (0,), (0,), 0.0, 1.05, 0.0), 0)

        assert pytest.approx(1.05, abs=0.01) == seconds.verify(0)
        assert pytest.approx(1.75, abs=0.01) == seconds.verify(4)

        for _ in range(60):
            seconds.learn(SpeculationStep(0, (0,), (0,), 0.0, 1.5, 0.0), 0)

        assert 2.0 <= seconds.verify(4) < 3.1

    def test_unseen_places_go_on_like_the_last_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only first tokens were drafted, and accepted: longer drafts are expected to be accepted too."""
        policy = WORLDS["good"].policy(monkeypatch)
        for _ in range(100):
            policy.learn(SpeculationStep(1, (1,), (1,), 0.1 * UNIT, UNIT, 0.0))

        assert 8 == policy(1)

    def test_tokens_after_a_rejected_one_are_not_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tokens after a rejected one do not count as rejected."""
        policy = WORLDS["good"].policy(monkeypatch, memory=1e9)
        for accepted in (0, 1, 1, 2) * 100:
            policy.learn(SpeculationStep(8, (8,), (accepted,), 0.8 * UNIT, UNIT, 0.0))
        first, second, third = policy._rates.acceptance()[:3]

        assert pytest.approx((3 / 4, 1 / 3, 0.0), abs=0.01) == (first, second, third)

    def test_a_missing_draft_is_no_rejection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rare but always accepted drafts get the maximum length: they cost nothing else."""
        policy = WORLDS["good"].policy(monkeypatch)
        for i in range(200):
            drafts = 8 * (i % 5 == 0)
            policy.learn(
                SpeculationStep(8, (drafts,), (drafts,), 0.001 * UNIT, UNIT * SMOOTH[drafts + 1], 0.0)
            )

        assert 8 == policy(1)
        # A fifth of the steps yields nine tokens in 1.24 forwards, the others one in one.
        assert pytest.approx(2.6 / 1.05 / UNIT, rel=0.15) == policy.tokens_per_second()[8]

    def test_the_longest_draft_of_the_rows_is_paid_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One row in four has a draft, never accepted: a batch of four rows mostly has one."""
        world = World(always(0.0), {1: 1.0, 9: 3.0})
        policy = world.policy(monkeypatch)
        for _ in range(60):
            policy.learn(SpeculationStep(4, (4, 0, 0, 0), (0, 0, 0, 0), 0.4 * UNIT, 3 * UNIT, 0.0))
        any_row = 1 - 0.75**4

        assert pytest.approx(1 / (0.75 + 0.25 * 3.4) / UNIT, rel=0.05) == policy.tokens_per_second(1)[4]
        assert (
            pytest.approx(4 / (1 - any_row + any_row * 3.4) / UNIT, rel=0.05)
            == (policy.tokens_per_second(4)[4])
        )

    def test_after_a_while_one_accepted_token_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A hundred tokens were rejected, ten steps ago: one accepted now makes drafts pay again."""
        policy = USELESS["cheap"].policy(monkeypatch)
        for _ in range(100):
            policy.learn(SpeculationStep(1, (1,), (0,), 0.1 * UNIT, 1.03 * UNIT, 0.0))
        for _ in range(10):
            policy.learn(SpeculationStep(0, (0,), (0,), 0.0, UNIT, 0.0))
        before = policy.tokens_per_second()
        policy.learn(SpeculationStep(1, (1,), (1,), 0.2 * UNIT, 1.03 * UNIT, 0.0))
        after = policy.tokens_per_second()

        assert before[1] < before[0]
        assert after[1] > after[0]

    def test_delayed_rows_pay_for_longer_forwards(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Drafts of one row pay alone, and not where seven others wait for each verification."""
        policy = World(always(0.9), {1: 1.0, 9: 1.5}).policy(monkeypatch)
        for _ in range(40):
            policy.learn(SpeculationStep(8, (8,), (5,), 0.8 * UNIT, 1.5 * UNIT, 0.0))
        speeds = policy.tokens_per_second(1, delayed=7)
        # Without it the price is tried again.
        policy._savings = 0.0

        assert policy(1) > 0 == policy.length_beside(1, 7)
        assert speeds[0] == max(speeds) == pytest.approx(8 / UNIT, rel=0.01)

    def test_what_delayed_rows_lose_is_accounted_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same step loses more of the allowance where other rows were delayed by it."""
        world, balances = World(always(0.9), {1: 1.0, 9: 1.5}), list[float]()
        for delayed in (0, 7):
            policy = world.policy(monkeypatch)
            for _ in range(3):
                step = SpeculationStep(8, (8,), (1,), 0.8 * UNIT, 1.5 * UNIT, 0.0, delayed=delayed)
                policy.learn(step)
            balances.append(policy._stake)

        assert pytest.approx(balances[0] - 3 * (1 - 1 / 8), abs=0.3) == balances[1]

    def test_a_trial_is_one_that_can_be_paid(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The longest draft promises most, but costs more than is ever saved: a shorter one is tried."""
        world = World(always(0.0), {1: 1.0, 2: 1.2, 9: 5.0})
        policy = world.policy(monkeypatch, expected=0.95)
        for _ in range(20):
            policy.learn(SpeculationStep(8, (8,), (0,), 0.8 * UNIT, 5 * UNIT, 0.0))
        lengths = world.run(policy, 2000, 3)[1]
        policy._rates = attrs.evolve(policy._rates, expected=1.0)
        speeds = policy.tokens_per_second()
        tried = world.run(policy, 2000, 4)[1]

        assert 8 == max(range(1, 9), key=speeds.__getitem__)
        assert any(lengths)
        assert {0, 1} == set(tried)

    def test_empty_drafts_of_a_prompt_in_prefill_are_not_counted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The drafter catches up with a newcomer: neither rates nor times of drafts are learned from it."""
        policies = [WORLDS["good"].policy(monkeypatch) for _ in range(2)]
        for policy in policies:
            for _ in range(10):
                policy.learn(SpeculationStep(4, (4, 4), (4, 4), 0.4 * UNIT, UNIT, 0.0))
        for _ in range(10):
            policies[1].learn(
                SpeculationStep(4, (4, 0), (4, 0), 9 * UNIT, UNIT, 0.0, catching_up=(False, True))
            )
        rates = [policy._rates.draft_rates() for policy in policies]
        speeds = [policy.tokens_per_second(2) for policy in policies]

        assert all(after >= before for before, after in zip(*rates, strict=True))
        assert pytest.approx(speeds[0], rel=0.1) == speeds[1]

    def test_a_long_prefill_makes_nothing_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Steps in which the drafter only catches up say nothing of acceptance, and end no drafting."""
        policy = WORLDS["good"].policy(monkeypatch)
        for _ in range(10):
            policy.learn(SpeculationStep(4, (4,), (4,), 0.4 * UNIT, UNIT, 0.0))
        before = policy._rates.acceptance()
        for _ in range(60):
            policy.learn(SpeculationStep(4, (0,), (0,), 0.1 * UNIT, UNIT, 0.0, catching_up=(True,)))

        assert before == policy._rates.acceptance()
        assert policy(1) > 0

    def test_a_trial_goes_on_until_the_drafter_has_caught_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It was fed a part of what it lacked: the wait for the next trial does not begin anew."""
        policy = USELESS["cheap"].policy(monkeypatch, allowance=1e6)
        USELESS["cheap"].run(policy, 100, 0)
        while not (allowed := policy(1)):
            policy.learn(SpeculationStep(0, (0,), (0,), 0.0, UNIT, 0.0))
        steps = 0
        for _ in range(3):
            policy.learn(SpeculationStep(allowed, (0,), (0,), 0.1 * UNIT, UNIT, 0.0, catching_up=(True,)))
            steps += policy(1) > 0

        assert 3 == steps

    def test_a_chunk_of_a_prompt_is_no_usual_catch_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many chunks a trial begins with."""
        policy = USELESS["cheap"].policy(monkeypatch)
        USELESS["cheap"].run(policy, 200, 0)
        before = policy._seconds.catch_up()
        for _ in range(8):
            policy.learn(SpeculationStep(4, (0,), (0,), UNIT, UNIT, 0.0, catching_up=(True,)))

        assert before == policy._seconds.catch_up()

    @pytest.mark.parametrize("rate", [0.3, 0.6, 0.9])
    def test_more_expensive_tokens_and_columns_never_lengthen_drafts(
        self, rate: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The best length falls as the draft or a column of the target becomes more expensive."""

        def best(token: float, column: float) -> int:
            world = World(always(rate), {width: 1 + column * (width - 1) for width in SMOOTH}, token)
            policy = world.policy(monkeypatch, allowance=1e9, memory=1e9)
            for i in range(300):
                accepted = next(
                    (place for place in range(8) if (i * 7919 + place * 31) % 100 >= 100 * rate), 8
                )
                seconds = (UNIT * 8 * token, UNIT * world.widths[9])
                policy.learn(SpeculationStep(8, (8,), (accepted,), *seconds, 0.0))
            return policy(1)

        by_token_cost = [best(token, 0.05) for token in (0.01, 0.1, 0.2, 0.4, 1.0)]
        by_column = [best(0.05, column) for column in (0.0, 0.05, 0.1, 0.3, 1.0)]

        assert sorted(by_token_cost, reverse=True) == by_token_cost
        assert sorted(by_column, reverse=True) == by_column
        assert by_token_cost[0] > by_token_cost[-1]
        assert by_column[0] > by_column[-1]

    def test_fills_the_width_that_is_paid_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If columns are free within a width and draft tokens nearly so, drafts fill the width."""
        world = World(always(0.6), {1: 1.0, 5: 1.2, 9: 2.5}, token=0.01)
        _, lengths = world.run(world.policy(monkeypatch), 300, 0)

        assert {4} == set(lengths[10:])

    @pytest.mark.parametrize("most", [0, 1, 3])
    def test_never_exceeds_most(self, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """However good the drafts."""
        world = World(always(0.98), token=0.01)
        _, lengths = world.run(world.policy(monkeypatch, most=most), 200, 0)

        assert most == max(lengths)

    def test_works_without_timing_the_target(self) -> None:
        """Without a generator to call prepare, it learns the cost of widths from use."""
        world = WORLDS["middling"]
        speed, _ = world.run(AdaptiveLength(), 1000, 0)

        assert speed > 0.93 * max(world.fixed(k) for k in range(9))

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
    def test_a_copy_starts_anew(self, copied: Callable[[AdaptiveLength], AdaptiveLength]) -> None:
        """With the same options."""
        policy = AdaptiveLength(4, expected=0.5, memory=20, allowance=6, share=0.01)
        anew = policy.tokens_per_second()
        policy.learn(SpeculationStep(4, (4,), (4,), 0.1, 1.0, 0.1))
        other = copied(policy)

        assert repr(policy) == repr(other)
        assert anew == other.tokens_per_second() != policy.tokens_per_second()

    def test_str(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The text shows lengths, rates and seconds; the repr shows the options."""
        world = WORLDS["steps"]
        policy = world.policy(monkeypatch, most=4)

        assert "AdaptiveLength(most=4, expected=0.7, memory=24.0, allowance=8.0, share=0.005)" == repr(policy)
        assert [
            "draft lengths 0 to 4, now best 4",
            "milliseconds by tokens: 10.00 for 1, 13.00 for 5, 16.00 for 9; draft 0.00 + 1.00 a token",
            "draft  accept  tokens/s",
            "    0       -     100.0",
            "    1    0.70     121.4",
        ] == str(policy).splitlines()[:5]


TABLE = 2 * torch.randn(31, 9, generator=torch.Generator().manual_seed(0))
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 1, 2], [3, 3]]


def drafters() -> list[Drafter]:
    """Perfect, often wrong, always wrong, and copying."""
    other = TABLE + 0.7 * torch.randn(TABLE.shape, generator=torch.Generator().manual_seed(1))
    shape = {"batch_size": 4, "widths": (1, 8), "scored_width": 1}
    models = [ScriptedDecoder(table, **shape) for table in (TABLE, other, -TABLE)]
    return [*map(DraftModel, models), PromptLookup()]


class TestInTheLoop:
    @pytest.mark.parametrize("number", range(4))
    @pytest.mark.parametrize("sampler", [Greedy(), Sample(seed=5)], ids=["greedy", "sample"])
    def test_changes_no_text(self, number: int, sampler: Any) -> None:
        """A ragged batch and each row alone, in two runs of one policy, equal plain decoding."""
        policy, draft = AdaptiveLength(4), drafters()[number]
        parts = {"sampler": sampler, "stop": MaxNewTokens([40, 11, 30, 55])}
        plain = Generator(ScriptedDecoder(TABLE, 4), **parts)(PROMPTS)
        fast = SpeculativeGenerator(ScriptedDecoder(TABLE, 4), draft, num_draft_tokens=policy, **parts)

        assert plain.ids == fast(PROMPTS).ids
        assert plain.ids == fast(PROMPTS).ids
        alone = attrs.evolve(fast, stop=MaxNewTokens(30))

        assert plain.ids[2] == alone(PROMPTS[2:3], [2]).ids[0]

    def test_learns_from_steps(self) -> None:
        """From the second token of a run on: the target's own draft is accepted, and the rate rises."""
        policy = AdaptiveLength(4, expected=0.6, allowance=1e9, share=0.99)
        model = DraftModel(ScriptedDecoder(TABLE))
        fast = SpeculativeGenerator(
            ScriptedDecoder(TABLE), model, num_draft_tokens=policy, stop=MaxNewTokens(50)
        )
        for _ in range(5):
            fast([1, 2])

        assert policy._rates.acceptance()[0] > 0.6

    def test_the_target_is_timed_once(self) -> None:
        """When the first generator is built: idle forwards of every scored width, nothing written."""
        target = ScriptedDecoder(TABLE, widths=(1, 3, 5, 16))
        for policy in (AdaptiveLength(4), AdaptiveLength(2)):
            SpeculativeGenerator(target, PromptLookup(), num_draft_tokens=policy)

        assert [1, 3, 5] * 6 == target.forwards
        assert (target.slots == -1).all()

    def test_where_padding_takes_no_time_tokens_are_timed(self) -> None:
        """Behind what the rows hold."""
        target = SkippingDecoder(TABLE, widths=(1, 3, 5, 16))
        before = Generator(target, stop=MaxNewTokens(4))([1, 2, 3]).ids
        fed, held = len(target.forwards), target.slots.clone()
        SpeculativeGenerator(target, PromptLookup(), num_draft_tokens=AdaptiveLength(4))

        assert [1, 3, 3, 5, 5] * 6 == target.forwards[fed:]
        assert torch.equal(held[0, :6], target.slots[0, :6])
        assert (0 == target.slots[0, 6:11]).all()
        assert [6] == Slots.of(target).held()
        assert before == Generator(target, stop=MaxNewTokens(4))([1, 2, 3]).ids

    def test_where_padding_takes_no_time_a_width_is_a_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From the fewest tokens that need it; flat where fewer seem to take longer."""
        seconds = {(1, 1): 1.0, (3, 2): 1.25, (3, 3): 1.5, (5, 1): 1.5, (5, 4): 2.5, (5, 5): 2.0}
        monkeypatch.setattr(Slots, "time_forward", lambda slots, *forward: seconds[forward])
        of = timed_widths.TimedWidth
        target = SkippingDecoder(TABLE, widths=(1, 3, 5, 16), scored_width=5)
        lines = timed_widths.time_widths(target)

        assert [of(1, 1, 1.0, 1.0, True), of(2, 3, 1.25, 1.5), of(4, 5, 2.0, 2.0)] == lines
        assert [1.25, 1.5] == [lines[1](tokens) for tokens in (2, 3)]
        assert [of(1, 5, 1.5, 2.0)] == timed_widths.time_widths(target, exact_width=True)

    def test_forwards_that_the_clock_does_not_resolve(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Their times divide."""
        monkeypatch.setattr(Slots, "time_forward", lambda slots, width, tokens: 0.0)
        policy = AdaptiveLength(4)
        policy.prepare(SkippingDecoder(TABLE, widths=(1, 3, 5, 16), scored_width=5))
        for k in (0, 1, 3, 4):
            policy.learn(SpeculationStep(k, (k,), (k,), 0.0, 0.0, 0.0))

        assert all(0 < policy._seconds.verify(k) < 1e-6 for k in range(5))

    def test_combined_decoders_take_the_sum(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each at its own width, of which fewer tokens may take less."""
        skipping = SkippingDecoder(TABLE, widths=(1, 5))
        padding = ScriptedDecoder(TABLE, widths=(1, 3, 5))

        def seconds(slots: Slots, width: int, tokens: int) -> float:
            return 1.0 * tokens if slots is Slots.of(skipping) else 10.0 * width

        monkeypatch.setattr(Slots, "time_forward", seconds)
        of = timed_widths.TimedWidth
        both = Combined([skipping, padding])
        expected = [of(1, 1, 11.0, 11.0, True), of(2, 3, 32.0, 33.0), of(4, 5, 54.0, 55.0)]

        assert expected == timed_widths.time_widths(both)

    def test_a_full_row_then_forgets_its_end_alone(self) -> None:
        """It is fed again by the next text that needs it."""
        target = SkippingDecoder(TABLE, max_length=16, widths=(1, 5))
        ids = [1, 2] * 7
        before = Generator(target, stop=MaxNewTokens(2))(ids).ids
        timed_widths.time_widths(target)

        assert [11] == Slots.of(target).held()
        assert before == Generator(target, stop=MaxNewTokens(2))(ids).ids

    def test_a_second_generator_changes_nothing(self) -> None:
        """Times learned from steps are not replaced by those of idle forwards."""
        target, policy = ScriptedDecoder(TABLE), AdaptiveLength(4)
        SpeculativeGenerator(target, PromptLookup(), num_draft_tokens=policy)
        policy.learn(SpeculationStep(0, (0,), (0,), 0.0, 5.0, 0.0))
        before = policy.tokens_per_second()
        SpeculativeGenerator(target, PromptLookup(), num_draft_tokens=policy)

        assert before == policy.tokens_per_second()

    def test_with_exact_width_there_is_one_width(self) -> None:
        """Plain decoding then costs as much as a verification."""
        policy = AdaptiveLength(4)
        SpeculativeGenerator(
            ScriptedDecoder(TABLE), PromptLookup(), num_draft_tokens=policy, exact_width=True
        )

        assert ((5, 5),) == policy._seconds._ranges.ranges

    def test_timing_keeps_no_decoder_alive(self) -> None:
        """A decoder's times are dropped with it."""
        target = ScriptedDecoder(TABLE)
        timed_widths.time_widths(target)
        number = id(target)

        assert number in timed_widths._timed
        del target
        gc.collect()

        assert number not in timed_widths._timed

    def test_threads_may_share_one(self) -> None:
        """Generators that share one policy give the same text as alone."""
        policy, texts = AdaptiveLength(4), {}
        parts = {"sampler": Sample(seed=2), "stop": MaxNewTokens(40)}

        def generate(name: int) -> None:
            model = DraftModel(ScriptedDecoder(TABLE))
            fast = SpeculativeGenerator(ScriptedDecoder(TABLE), model, num_draft_tokens=policy, **parts)
            texts[name] = [fast([name, 1]).ids for _ in range(3)]

        threads = [threading.Thread(target=generate, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        plain = Generator(ScriptedDecoder(TABLE), **parts)

        assert {name: [plain([name, 1]).ids] * 3 for name in range(4)} == texts


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"most": 2.5}, TypeError, "'most' must be a whole number: got 2.5"),
            ({"most": True}, TypeError, "'most' must be a whole number: got True"),
            ({"most": -1}, ValueError, "'most' must be >= 0"),
            ({"expected": 1.2}, ValueError, "'expected' must be >= 0 and <= 1: got 1.2"),
            ({"expected": float("nan")}, ValueError, "'expected' must be >= 0 and <= 1: got nan"),
            ({"memory": 0.5}, ValueError, "'memory' must be >= 1: got 0.5"),
            ({"allowance": 0}, ValueError, "'allowance' must be > 0: got 0.0"),
            ({"share": 1}, ValueError, "'share' must be >= 0 and < 1: got 1.0"),
            ({"share": "much"}, TypeError, "'share' must be a number: got 'much'"),
        ],
    )
    def test_bad_options(self, options: Any, error: type[Exception], message: str) -> None:
        """Refused at construction."""
        with pytest.raises(error, match=message):
            AdaptiveLength(**options)

    def test_most_has_to_fit_the_decoder(self) -> None:
        """The message names the width to compile, and nothing is timed."""
        target = ScriptedDecoder(TABLE)
        message = "'num_draft_tokens' must be at most 4.*: got 8. Compile it with 9 among its widths"
        with pytest.raises(ValueError, match=message):
            SpeculativeGenerator(target, PromptLookup(), num_draft_tokens=AdaptiveLength())

        assert [] == target.forwards
