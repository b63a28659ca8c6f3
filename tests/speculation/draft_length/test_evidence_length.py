"""Draft length by evidence: the bound of its loss, and what it learns."""

from collections.abc import Sequence
from itertools import combinations

import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from decodekit.decoding import Generator, MaxNewTokens, SpeculationStep
from decodekit.speculation import AdaptiveLength, PromptLookup, SpeculativeGenerator, SuffixAutomaton
from decodekit.speculation.draft_length import step_seconds
from decodekit.speculation.draft_length.evidence_length import ALLOWANCE, SHARE, EvidenceLength
from decodekit.speculation.draft_length.price import Price
from decodekit.speculation.draft_length.timed_widths import TimedWidth
from decodekit.testing import ScriptedDecoder

STEPS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=150)
COSTS = st.lists(st.floats(0, 3), min_size=8, max_size=8).map(sorted)


def undrafted(evidence: list[int]) -> SpeculationStep:
    """A step without a draft, in rows with *evidence*, whose first tokens would have been rejected."""
    nothing = (0,) * len(evidence)
    foreseen = (False,) * len(evidence)
    return SpeculationStep(0, nothing, nothing, 0.0, 1.0, 0.0, tuple(evidence), foreseen=foreseen)


def rates(policy: EvidenceLength) -> list[float]:
    """What it expects of evidence of every strength."""
    return [policy._rates.rate(strength) for strength in range(17)]


def longest(policy: EvidenceLength, evidence: Sequence[int], prices: Sequence[Price]) -> int:
    """The longest draft that it chooses."""
    return max(policy.choose(evidence, prices))


class TestTheBound:
    @settings(deadline=None)
    @given(STEPS, COSTS, st.floats(0.5, 2))
    def test_holds_for_any_acceptance_and_costs(
        self, steps: list[tuple[int, int]], costs: list[float], factor: float
    ) -> None:
        """After every step, however few draft tokens were accepted, and whatever the steps proved to cost."""
        policy, prices, net = EvidenceLength(24.0), [Price(0.0), *map(Price, costs)], 0.0
        for count, (evidence, agreed) in enumerate(steps, 1):
            if not policy.wants_evidence():
                continue
            k = longest(policy, [evidence], prices)
            accepted = min(agreed, k)
            proved = [Price(factor * price.expected) for price in prices]
            policy.learn(SpeculationStep(k, (k,), (accepted,), 0.0, 1.0, 0.0, (evidence,)), proved)
            net += accepted - min(prices[k].expected, proved[k].expected)

            assert net >= -(ALLOWANCE + count * SHARE) - 1e-9

    @settings(deadline=None)
    @given(STEPS, st.floats(0, 3), st.floats(0, 1))
    def test_of_a_price_in_doubt_is_what_it_may_be_at_least(
        self, steps: list[tuple[int, int]], cost: float, doubt: float
    ) -> None:
        """The first use of a width is allowed if that is affordable; it settles the price."""
        policy, net, used = EvidenceLength(24.0), 0.0, False
        for count, (evidence, agreed) in enumerate(steps, 1):
            prices = [Price(0.0), Price(cost, 0.0 if used else cost * doubt)]
            k = longest(policy, [evidence], prices)
            accepted = min(agreed, k)
            policy.learn(SpeculationStep(k, (k,), (accepted,), 0.0, 1.0, 0.0, (evidence,)))
            net, used = net + accepted - prices[k].expected, used or k > 0

            assert net >= -(ALLOWANCE + count * SHARE + cost * doubt) - 1e-9

    def test_useless_drafts_end(self) -> None:
        """Of 200 steps with evidence few draft in vain."""
        policy, prices = EvidenceLength(24.0), [Price(0.0), Price(0.25)]
        lengths = []
        for _ in range(200):
            lengths.append(longest(policy, [4], prices))
            policy.learn(SpeculationStep(lengths[-1], (lengths[-1],), (0,), 0.0, 1.0, 0.0, (4,)))

        assert 1 <= sum(lengths) <= (ALLOWANCE + 200 * SHARE) / 0.25

    def test_a_price_that_proves_too_high_is_not_paid(self) -> None:
        """The step's own times count, as they were learned."""
        policy, dear, cheap = EvidenceLength(24.0), [Price(0.0), Price(0.9, 0.9)], [Price(0.0), Price(0.25)]

        assert 1 == longest(policy, [16], dear)

        policy.learn(SpeculationStep(1, (1,), (0,), 0.0, 1.0, 0.0, (16,)), cheap)

        assert pytest.approx(ALLOWANCE + SHARE - 0.25) == policy.balance


class TestWhatItLearns:
    def test_weak_evidence_is_left_and_strong_evidence_used(self) -> None:
        """Where the weakest is always wrong and strong evidence always right."""
        policy, prices = EvidenceLength(24.0), [Price(0.0), *[Price(0.25)] * 4]
        for evidence in [1, 9] * 40:
            k = longest(policy, [evidence], prices)
            policy.learn(SpeculationStep(k, (k,), (k if evidence == 9 else 0,), 0.0, 1.0, 0.0, (evidence,)))

        assert 0 == longest(policy, [1], prices)
        assert 4 == longest(policy, [9], prices)
        assert 0 == longest(policy, [0], prices)

    def test_tokens_that_are_foreseen_are_learned_from_without_drafts(self) -> None:
        """In whose absence weak evidence would not be drafted from, or would be in vain."""
        prices = [Price(0.0), *[Price(0.5)] * 4]
        for foreseen, expected in [(True, 4), (False, 0)]:
            policy = EvidenceLength(24.0)

            assert 0 == longest(policy, [1], prices)

            for evidence in (1, 2, 3, 4) * 20:
                step = SpeculationStep(0, (0,), (0,), 0.0, 1.0, 0.0, (evidence,), foreseen=(foreseen,))
                policy.learn(step)

            assert expected == longest(policy, [4], prices) == longest(policy, [1], prices)

    @pytest.mark.parametrize("rows", [1, 2, 3, 16])
    @pytest.mark.parametrize("evidence", [0, 1])
    def test_rows_far_from_a_gain_are_looked_at_now_and_then(self, evidence: int, rows: int) -> None:
        """Where evidence that grows by one a step could not make a draft pay meanwhile."""
        policy, prices = EvidenceLength(24.0), [Price(0.0), *[Price(1.4)] * 4]
        for _ in range(3):
            assert policy.wants_evidence()
            assert 0 == longest(policy, [evidence] * rows, prices)
            policy.learn(undrafted([evidence] * rows))
            assert [False] * 3 == [policy.wants_evidence() for _ in range(3)]

    @pytest.mark.parametrize("rows", [1, 2, 3, 16])
    def test_a_gain_that_is_near_is_looked_for_in_every_step(self, rows: int) -> None:
        """Where one more token of the two strongest matches makes a draft pay."""
        policy, prices = EvidenceLength(24.0), [Price(0.0), *[Price(0.5 * min(rows, 2) / rows)] * 4]
        evidence = [2, 2, *[0] * (rows - 2)][:rows]
        for _ in range(5):
            assert 0 == longest(policy, evidence, prices)
            policy.learn(undrafted(evidence))
            assert policy.wants_evidence()

    @settings(deadline=None)
    @given(st.lists(st.integers(0, 12), min_size=1, max_size=2), COSTS)
    @example([3], [0.267, *[3.0] * 7])
    def test_a_pause_misses_no_draft_of_evidence_that_grows_by_one(
        self, evidence: list[int], costs: list[float]
    ) -> None:
        """Of one or two rows, at the balance of its beginning: in no step of it would one have been made."""
        policy, prices = EvidenceLength(24.0), [Price(0.0), *map(Price, costs)]
        if not longest(policy, evidence, prices):
            policy.learn(undrafted(evidence))
            before, grown = policy.balance, evidence
            while not policy.wants_evidence():
                policy.balance, grown = before, [each + 1 for each in grown]

                assert 0 == longest(policy, grown, prices)

    def test_a_draft_ends_a_pause(self) -> None:
        """Of a policy that generators share, one of whose texts gives no evidence."""
        policy, prices = EvidenceLength(24.0), [Price(0.0), *[Price(0.2)] * 4]
        assert longest(policy, [9], prices)
        policy.learn(undrafted([0]))
        policy.learn(SpeculationStep(4, (4,), (4,), 0.0, 1.0, 0.0, (9,)))

        assert policy.wants_evidence()

    @pytest.mark.parametrize("price", [0.2, 0.4])
    def test_a_text_that_begins_to_repeat_itself_is_drafted_from_soon(self, price: float) -> None:
        """Its evidence grows by two: the draft begins at most two steps late."""
        late = {}
        for pauses in (True, False):
            policy, prices = EvidenceLength(24.0), [Price(0.0), *[Price(price)] * 4]
            for evidence in (0, 0, 0, 3, 5, 7, 9, 11, 13):
                if not policy.wants_evidence() and pauses:
                    continue
                if longest(policy, [evidence], prices):
                    late[pauses] = evidence
                    break
                policy.learn(undrafted([evidence]))

        assert late[True] - late[False] <= 2 * 2

    def test_rows_without_evidence_foresee_nothing(self) -> None:
        """They are other requests', and their tokens no drafts'."""
        policy, other = EvidenceLength(24.0), EvidenceLength(24.0)
        policy.learn(SpeculationStep(0, (0, 0), (0, 0), 0.0, 1.0, 0.0, (3, 0), foreseen=(True, False)))
        other.learn(SpeculationStep(0, (0,), (0,), 0.0, 1.0, 0.0, (3,), foreseen=(True,)))

        assert rates(other) == rates(policy)

    @pytest.mark.parametrize("fewest", [2, 5])
    @pytest.mark.parametrize("timed", [1.2, 2.7, 3.2, 4.0])
    def test_one_bad_timing_does_not_forbid_drafts(
        self, timed: float, fewest: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The wide forward was timed in a busy moment; it takes 1.2 in truth."""
        widths = [TimedWidth(1, 1, 0.01, 0.01), TimedWidth(fewest, 5, 0.012, 0.01 * timed)]
        monkeypatch.setattr(step_seconds, "time_widths", lambda decoder, exact_width: widths)
        policy = AdaptiveLength(4)
        policy.prepare(ScriptedDecoder(torch.zeros(1, 2)))
        lengths = []
        for _ in range(60):
            lengths.append(k := policy.weigh([9])[0])
            step = SpeculationStep(k, (k,), (k,), 1e-5, 0.012 if k else 0.01, 0.0, (9,), foreseen=(True,))
            policy.learn(step)

        assert [4] * 30 == lengths[30:]

    @pytest.mark.parametrize("fewest", [2, 5])
    @pytest.mark.parametrize("timed", [1.2, 2.7, 3.2])
    def test_nor_those_without_evidence(
        self, timed: float, fewest: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a draft model."""
        widths = [TimedWidth(1, 1, 0.01, 0.01), TimedWidth(fewest, 5, 0.012, 0.01 * timed)]
        monkeypatch.setattr(step_seconds, "time_widths", lambda decoder, exact_width: widths)
        policy = AdaptiveLength(4)
        policy.prepare(ScriptedDecoder(torch.zeros(1, 2)))
        lengths = []
        for _ in range(300):
            lengths.append(k := policy(1))
            policy.learn(SpeculationStep(k, (k,), (k,), 1e-3 * k, 0.012 if k else 0.01, 0.0))

        # A short draft is known to pay; whether a longer one would is not tried.
        assert lengths[250:].count(4 if fewest == 5 else lengths[-1]) == 50
        assert lengths[-1] >= 1


class TestInTheLoop:
    @pytest.mark.parametrize("drafter", [PromptLookup(), SuffixAutomaton()], ids=["lookup", "suffix"])
    def test_the_default_asks_for_evidence_and_changes_no_text(self, drafter: object) -> None:
        """Drafts are made, and each step's evidence is learned from."""
        circle = torch.eye(6).roll(1, dims=1)
        plain = Generator(ScriptedDecoder(circle), stop=MaxNewTokens(60))
        fast = SpeculativeGenerator(ScriptedDecoder(circle), drafter, stop=MaxNewTokens(60))
        result = fast([0])

        assert plain([0]).ids == result.ids
        assert isinstance(fast.num_draft_tokens, AdaptiveLength)
        assert fast.num_draft_tokens.most == min(8, fast.decoder.shape.scored_width - 1)
        assert sum(result.statistics.drafted) > 0


class Divided(ScriptedDecoder):
    """A decoder that says that it is divided over processes."""

    in_lockstep = True


class TestDecodersDividedOverProcesses:
    def test_have_a_fixed_default(self) -> None:
        """Times differ between processes, so no length may depend on them."""
        assert 4 == SpeculativeGenerator(Divided(torch.eye(6)), PromptLookup()).num_draft_tokens

    def test_refuse_a_length_that_adapts(self) -> None:
        """Before any of them waits for the others."""
        with pytest.raises(
            ValueError, match="'num_draft_tokens' must not decide by time where the decoder is divided"
        ):
            SpeculativeGenerator(Divided(torch.eye(6)), PromptLookup(), num_draft_tokens=AdaptiveLength(4))


class TestRows:
    @given(
        st.lists(st.integers(0, 20), min_size=1, max_size=4),
        COSTS,
        st.floats(0, 1),
        st.lists(st.tuples(st.integers(1, 18), st.booleans()), max_size=30),
    )
    def test_of_all_sets_of_rows_the_fastest_drafts(
        self, evidence: list[int], costs: list[float], of_tokens: float, seen: list[tuple[int, bool]]
    ) -> None:
        """By brute force, whatever was learned: rows that cost more than they gain are left out."""
        policy = EvidenceLength(24.0)
        for strength, good in seen:
            policy._rates.learn(SpeculationStep(1, (1,), (int(good),), 0.0, 1.0, 0.0, (strength,)))
        prices = [
            Price(0.0),
            *(Price(cost, by_share=((0, (1 - of_tokens) * cost), (1, cost))) for cost in costs),
        ]
        gains = [policy._rates.accepted(each, 8) for each in evidence]
        drafting = [row for row, each in enumerate(evidence) if each]

        def speed(rows: Sequence[int], length: int) -> float:
            gain = sum(gains[row][length] for row in rows) / len(evidence)
            price = costs[length - 1] * (1 - of_tokens * (1 - len(rows) / len(evidence)))
            pays = price <= ALLOWANCE and gain >= 1.25 * price and gain > price
            return (1 + gain) / (1 + price) if pays else 1.0

        sets = (some for count in range(1, len(drafting) + 1) for some in combinations(drafting, count))
        fastest = max((speed(some, length) for some in sets for length in range(1, 9)), default=1.0)
        chosen = policy.choose(evidence, prices)
        rows = [row for row, length in enumerate(chosen) if length]

        assert pytest.approx(fastest) == (speed(rows, max(chosen)) if rows else 1.0)
        assert len({chosen[row] for row in rows}) <= 1

    def test_tokens_that_cost_nothing_are_drafted_for_all(self) -> None:
        """A forward takes as long for one row's draft as for all rows'."""
        chosen = EvidenceLength(24.0).choose([16, 1, 0, 9], [Price(0.0), *[Price(0.2)] * 4])

        assert [4, 4, 0, 4] == chosen

    def test_weak_rows_do_not_draft_where_tokens_cost(self) -> None:
        """They would delay the strong ones."""
        chosen = EvidenceLength(24.0).choose(
            [16, 1, 0, 16], [Price(0.0), Price(0.4, by_share=((0, 0), (1, 0.4)))]
        )

        assert [1, 0, 0, 1] == chosen

    def test_the_balance_pays_for_the_tokens_that_were_drafted(self) -> None:
        """Not for those of rows that were left out."""
        policy = EvidenceLength(24.0)
        policy.choose([16, 1], [Price(0.0), Price(0.6, by_share=((0, 0.2), (1, 0.6)))])
        policy.learn(SpeculationStep(1, (1, 0), (0, 0), 0.0, 1.0, 0.0, (16, 1)))

        assert pytest.approx(ALLOWANCE + SHARE - 0.4) == policy.balance

    def test_a_width_that_few_rows_use_is_not_in_doubt_for_ever(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Or rows whose drafts are never right would draft on."""
        widths = [TimedWidth(1, 1, 0.01, 0.01), TimedWidth(2, 5, 0.012, 0.018)]
        monkeypatch.setattr(step_seconds, "time_widths", lambda decoder, exact_width: widths)
        policy, chosen = AdaptiveLength(4), [0] * 4
        policy.prepare(ScriptedDecoder(torch.zeros(1, 2)))
        for _ in range(30):
            chosen = policy.weigh([16, 1, 0, 0])
            drafted, accepted = tuple(chosen), (chosen[0], 0, 0, 0)
            seconds = 0.01 + 0.002 * sum(chosen) / 4
            policy.learn(SpeculationStep(max(chosen), drafted, accepted, 0.0, seconds, 0.0, (16, 1, 0, 0)))

        assert [4, 0, 0, 0] == chosen

    def test_rows_that_were_left_out_are_learned_from(self) -> None:
        """Where the drafter tells what their drafts would have begun with."""
        policy = EvidenceLength(24.0)
        before = policy._rates.rate(2)
        step = SpeculationStep(1, (1, 0), (1, 0), 0.0, 1.0, 0.0, (16, 2), foreseen=(True, True))
        policy.choose([16, 2], [Price(0.0), Price(0.1)])
        policy.learn(step)

        assert policy._rates.rate(2) > before
