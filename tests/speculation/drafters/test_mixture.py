"""Mixture of drafters."""

import itertools
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding import Draft, Generator, Greedy, History, MaxNewTokens, Sample, SamplingPipeline
from decodekit.decoding.protocols import Drafter, SamplesTokens
from decodekit.speculation import DraftModel, Mixture, PromptLookup, SpeculativeGenerator, SuffixAutomaton
from decodekit.speculation.drafters.mixture_selection import assign
from decodekit.testing import ScriptedDecoder, last_token

from ..same_text import SHAPE, VOCAB, Failing, check_same_text, draft_ids, history, table

GREEDY_PIPELINE = SamplingPipeline(None, Greedy())
LONG = {"max_length": 400, "widths": (1, 5, 32), "scored_width": 5}


@attrs.define(eq=False)
class Spy:
    """Records the budgets passed to *drafter*."""

    drafter: Drafter
    budgets: list[list[int]] = attrs.field(factory=list)

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        self.budgets.append(budget.tolist())
        return self.drafter.propose(history, budget, sample)


@attrs.define(eq=False)
class SpyLookup(Spy):
    """The same for a drafter with evidence."""

    def evidence(self, history: History, budget: Tensor) -> Tensor:
        return self.drafter.evidence(history, budget)  # type: ignore[attr-defined, no-any-return]


@attrs.frozen(eq=False)
class ScriptedDrafts:
    """Drafts *ids* of the number of tokens so far and the row."""

    ids: Callable[[int, int], list[int]]

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        rows = [self.ids(length, row) for row, length in enumerate(history.length[:, 0].tolist())]
        ids = torch.full((len(rows), max(map(len, rows))), -1)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        return Draft(ids.masked_fill(budget[:, None] == 0, -1))


@attrs.frozen(eq=False)
class Lookup(ScriptedDrafts):
    """The same with evidence of *amount*, for the number of tokens so far and the row."""

    amount: Callable[[int, int], int] = lambda length, row: 1

    def evidence(self, history: History, budget: Tensor) -> Tensor:
        lengths = history.length[:, 0].tolist()
        amounts = [self.amount(length, row) for row, length in enumerate(lengths)]
        return torch.tensor(amounts).masked_fill(budget == 0, 0)


# In these tests token n of a text is n.
def right(length: int, row: int) -> list[int]:
    """A correct draft."""
    return [length, length + 1]


def wrong(length: int, row: int) -> list[int]:
    """A wrong draft."""
    return [10**6, 10**6]


def follow(mixture: Mixture, rounds: int, rows: int = 1, gain: int = 2) -> list[list[list[int]]]:
    """Drafts of *mixture*, step by step, in rows that get *gain* tokens each time."""
    lengths = range(1, 1 + rounds * gain, gain)
    return [draft_ids(mixture, [list(range(n))] * rows, [2] * rows) for n in lengths]


class TestAssign:
    @given(
        st.integers(1, 4).flatmap(
            lambda drafters: st.tuples(
                st.lists(
                    st.lists(st.integers(0, 8), min_size=drafters, max_size=drafters), min_size=1, max_size=4
                ),
                st.lists(st.integers(0, 10), min_size=drafters, max_size=drafters),
            )
        )
    )
    def test_is_best_of_all(self, case: tuple[list[list[int]], list[int]]) -> None:
        """Compared with every assignment of drafters to rows."""
        gains, prices = case

        def worth(picks: Any) -> float:
            gained = sum(gains[row][number] for row, number in enumerate(picks) if number >= 0)
            return gained - sum(prices[number] for number in {*picks} - {-1})

        ways = itertools.product(range(-1, len(prices)), repeat=len(gains))

        assert max(map(worth, ways)) == worth(assign(np.array(gains, dtype=float), prices))

    def test_rows_share_a_drafters_price(self) -> None:
        """Three tokens are not worth four, but twice three are."""
        assert [-1] == assign(np.array([[3.0]]), [4.0])
        assert [0, 0] == assign(np.array([[3.0], [3.0]]), [4.0])

    def test_the_first_of_equals(self) -> None:
        """No drafter rather than one without gain."""
        assert [0] == assign(np.array([[1.0, 1.0]]), [0.0, 0.0])
        assert [-1, 1] == assign(np.array([[0.0, 0.0], [0.0, 1.0]]), [0.0, 0.0])


class TestPicks:
    def test_the_one_that_is_right(self) -> None:
        """After a few steps; the other one hardly runs again."""
        good, bad = Spy(ScriptedDrafts(right)), Spy(ScriptedDrafts(wrong))
        generated = follow(Mixture([bad, good], costs=[0.1, 0.1]), 100)

        assert 10 > len(bad.budgets) > 0
        assert 90 < sum(ids == [right(2 * n + 1, 0)] for n, ids in enumerate(generated))

    def test_nothing_where_nothing_pays(self) -> None:
        """A drafter that is always wrong is tried only now and then."""
        bad = Spy(ScriptedDrafts(wrong))
        generated = follow(Mixture([bad], costs=[0.2]), 300, gain=1)

        assert [[[]]] * 250 < sorted(generated)
        assert 3 < len(bad.budgets) < 50

    def test_not_what_costs_more_than_it_gains(self) -> None:
        """Two tokens that are always accepted, at the cost of ten target forwards."""
        dear = Spy(ScriptedDrafts(right))
        follow(Mixture([dear], costs=[5.0]), 100)

        assert 5 > len(dear.budgets)

    @pytest.mark.parametrize(
        ("rows", "budget", "cost", "pays"),
        [
            # The prior acceptance rate is 4 in 5; a step is worth one token per row.
            pytest.param(1, 1, 0.75, True, id="0.8-for-0.75"),
            pytest.param(1, 1, 0.85, False, id="0.8-for-0.85"),
            pytest.param(4, 1, 0.75, True, id="four-rows-gain-four-times-as-much"),
            pytest.param(4, 1, 0.85, False, id="and-lose-four-times-as-much"),
            pytest.param(1, 2, 0.70, True, id="0.8-and-0.64-for-1.4"),
            pytest.param(1, 2, 0.74, False, id="0.8-and-0.64-for-1.48"),
        ],
    )
    def test_the_first_step(self, rows: int, budget: int, cost: float, pays: bool) -> None:
        """Used if its gain exceeds its cost."""
        spy = Spy(ScriptedDrafts(right))
        draft_ids(Mixture([spy], costs=[cost]), [[0]] * rows, [budget] * rows)

        assert pays == bool(spy.budgets)

    def test_the_price_of_time(self) -> None:
        """Three tokens per step of 1.5 units of time, drafting included: two per unit."""
        mixture = Mixture([ScriptedDrafts(right)], costs=[0.25])
        follow(mixture, 500, gain=3)

        assert mixture._selector.pace.price() == pytest.approx(2.0, rel=0.01)

    def test_what_is_cheaper_for_the_same(self) -> None:
        """Both are always right."""
        dear, cheap = Spy(ScriptedDrafts(right)), Spy(ScriptedDrafts(right))
        follow(Mixture([dear, cheap], costs=[0.4, 0.1]), 100, gain=3)

        assert 0 == len(dear.budgets)

    def test_by_evidence(self) -> None:
        """Strong evidence selects the lookup, weak evidence the more expensive drafter."""
        lookup = Lookup(
            lambda length, row: right(length, row) if length % 4 == 1 else wrong(length, row),
            lambda length, row: 20 if length % 4 == 1 else 1,
        )
        model = Spy(ScriptedDrafts(right))
        follow(Mixture([lookup, model], costs=[0.0, 0.1]), 200)

        # Every other step has weak evidence.
        assert 90 <= len(model.budgets) <= 105

    def test_never_a_lookup_without_a_draft(self) -> None:
        """Evidence of 0 means no draft, however good elsewhere."""
        lookup = Lookup(right, lambda length, row: row)

        assert all([[], right(2 * n + 1, 1)] == ids for n, ids in enumerate(follow(Mixture([lookup]), 9, 2)))

    def test_row_by_row(self) -> None:
        """Each row has its own best drafter; it is idle in those of other rows."""
        first = Spy(ScriptedDrafts(lambda n, row: right(n, row) if row == 0 else wrong(n, row)))
        second = Spy(ScriptedDrafts(lambda n, row: right(n, row) if row == 1 else wrong(n, row)))
        mixture = Mixture([first, second], costs=[0.05, 0.05])
        for n in range(1, 200, 2):
            # Distinct rows, as they are identified by their tokens.
            rows = [list(range(n)), [7, *range(1, n)]]
            draft_ids(mixture, rows, [2, 2])

        assert first.budgets.count([2, 0]) > 60
        assert second.budgets.count([0, 2]) > 60

    def test_a_lookup_learns_from_unused_drafts(self) -> None:
        """A lookup that turns good is selected soon, as its unused drafts count."""
        lookup = Lookup(lambda n, row: right(n, row) if n > 200 else wrong(n, row))
        model = Spy(ScriptedDrafts(right))
        mixture = Mixture([lookup, model], costs=[0.0, 0.3])
        follow(mixture, 100)
        before = len(model.budgets)
        # As of fifty wrong drafts, of which hardly one was used.
        assert mixture._selector.acceptance.rate((0, 1), 0.8) < 0.05
        for n in range(201, 401, 2):
            draft_ids(mixture, [list(range(n))], [2])

        assert before > 90
        assert len(model.budgets) - before < 60

    @pytest.mark.parametrize("seed", range(20))
    def test_the_draft_itself_decides_nothing(self, seed: int) -> None:
        """Drafters that differ only in their current draft are selected alike."""
        dice = random.Random(seed)
        turn, p = dice.randrange(1, 60, 2), dice.random()
        lucky = [dice.random() < p for _ in range(70)]

        def budgets(now: Callable[[int, int], list[int]]) -> list[list[list[int]]]:
            before = [right if luck else wrong for luck in lucky]
            spies = [
                Spy(ScriptedDrafts(lambda n, row: (now if n == turn else before[n])(n, row))),
                Spy(ScriptedDrafts(right)),
            ]
            mixture = Mixture(spies, costs=[0.1, 0.4])
            for n in range(1, turn + 1, 2):
                draft_ids(mixture, [list(range(n))], [2])
            return [spy.budgets for spy in spies]

        assert budgets(right) == budgets(wrong)

    def test_measures_what_is_not_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By the clock: a drafter as slow as ten steps does not run again."""
        clock = 0.0

        def slowly(seconds: float, ids: Callable[[int, int], list[int]]) -> ScriptedDrafts:
            def scripted(length: int, row: int) -> list[int]:
                nonlocal clock
                clock += seconds
                return ids(length, row)

            return ScriptedDrafts(scripted)

        monkeypatch.setattr("time.perf_counter", lambda: clock)
        slow, quick = Spy(slowly(10.0, right)), Spy(slowly(0.1, lambda n, row: right(n, row)[:1]))
        mixture = Mixture([slow, quick])
        for n in range(1, 201, 2):
            draft_ids(mixture, [list(range(n))], [2])
            clock += 1.0

        assert len(slow.budgets) < 5
        assert len(quick.budgets) > 90


class TestDrafts:
    def test_scores_belong_to_their_rows(self) -> None:
        """A row whose draft was not sampled has point masses."""
        scores = torch.randn(3, 1, 5)
        drawn = Script(Draft(torch.tensor([[1], [2], [-1]]), scores))
        lookup = Lookup(lambda n, row: [3, 4], lambda n, row: int(row == 0))
        mixture = Mixture([lookup, drawn], costs=[0.0, 0.1])

        draft = mixture.propose(history([[1], [2], [3]]), torch.tensor([2, 2, 0]), GREEDY_PIPELINE)

        assert [[3, 4], [2, -1], [-1, -1]] == draft.ids.tolist()
        assert draft.scores is not None
        inf = torch.inf
        assert [[-inf, -inf, -inf, 0, -inf], [-inf, -inf, -inf, -inf, 0]] == draft.scores[0].tolist()
        assert scores[1, 0].equal(draft.scores[1, 0])

    def test_scores_are_none_where_nothing_was_drawn(self) -> None:
        """Then the whole draft is a point mass."""
        drawn = Script(Draft(torch.tensor([[1]]), torch.randn(1, 1, 5)))
        lookup = Lookup(lambda n, row: [3, 4])

        draft = Mixture([lookup, drawn]).propose(history([[1]]), torch.tensor([2]), GREEDY_PIPELINE)

        assert [[3, 4]] == draft.ids.tolist()
        assert draft.scores is None

    def test_trees_beside_chains(self) -> None:
        """Chains get the tokens before as parents."""
        tree = Script(Draft(torch.tensor([[1, 2, 3], [4, 5, 6]]), parents=torch.tensor([[-1, -1, 0]] * 2)))
        lookup = Lookup(lambda n, row: [7, 8], lambda n, row: int(row == 0))
        mixture = Mixture([lookup, tree], costs=[0.0, 0.1])

        draft = mixture.propose(history([[1], [2]]), torch.tensor([2, 2]), GREEDY_PIPELINE)

        assert [[7, 8, -1], [4, 5, 6]] == draft.ids.tolist()
        assert draft.parents is not None
        assert [[-1, 0], [-1, -1]] == draft.parents[:, :2].tolist()
        assert 0 == draft.parents[1, 2]

    def test_nothing_without_a_budget(self) -> None:
        """Without a budget no drafter runs."""
        spy = Spy(ScriptedDrafts(right))

        assert [[], []] == draft_ids(Mixture([spy]), [[1], [2]], [0, 0])
        assert [] == spy.budgets

    def test_the_target_is_checked(self) -> None:
        """Each drafter checks it."""
        model = DraftModel(ScriptedDecoder(table(0, 5)))

        with pytest.raises(ValueError, match="vocabulary must be the target's, 6: got 5"):
            SpeculativeGenerator(ScriptedDecoder(table(0, 6)), Mixture([PromptLookup(), model]))


@attrs.frozen(eq=False)
class Script:
    """Drafts *draft*."""

    draft: Draft

    def propose(self, history: History, budget: Tensor, sample: SamplesTokens) -> Draft:
        return self.draft


class TestRefuses:
    @pytest.mark.parametrize(
        "drafters", [3, np.int64(3), DraftModel, [DraftModel], [PromptLookup(), None], PromptLookup()]
    )
    def test_what_is_no_drafter(self, drafters: object) -> None:
        """A class or a single one is a likely mistake."""
        with pytest.raises(TypeError, match="'drafters' must be drafters, each with propose"):
            Mixture(drafters)

    def test_none(self) -> None:
        """At least one drafter is required."""
        with pytest.raises(ValueError, match=r"'drafters' must be drafters.*: got none"):
            Mixture([])

    @pytest.mark.parametrize(
        ("costs", "error", "message"),
        [
            ([0.1], ValueError, "'costs' must be one a drafter: got 1 for 2 drafters"),
            ([0.1, -0.1], ValueError, "'costs' must be >= 0: got -0.1"),
            ([0.1, float("nan")], ValueError, "'costs' must be >= 0: got nan"),
            ([0.1, "free"], TypeError, "'costs' must be numbers: got 'free'"),
            ([0.1, True], TypeError, "'costs' must be numbers: got True"),
            (0.1, TypeError, "'costs' must be None or numbers, one a drafter: got 0.1"),
        ],
    )
    def test_costs(self, costs: list[Any], error: type[Exception], message: str) -> None:
        """One real number per drafter."""
        with pytest.raises(error, match=message):
            Mixture([PromptLookup(), SuffixAutomaton()], costs)


def mixed(scores: Tensor, costs: tuple[float, ...] | None = None) -> Mixture:
    """Mixture of a mostly correct model and two lookups."""
    near = scores + 0.3 * torch.randn(scores.shape, generator=torch.Generator().manual_seed(1))
    model = DraftModel(ScriptedDecoder(near, 4, **SHAPE))
    return Mixture([SuffixAutomaton(), model, PromptLookup()], costs)


class TestGeneration:
    @pytest.mark.parametrize("costs", [None, (0.0, 0.1, 0.0)])
    def test_same_text(self, costs: tuple[float, ...] | None) -> None:
        """The text equals plain decoding, and some draft tokens are accepted."""
        assert check_same_text(lambda scores: mixed(scores, costs)) > 50

    def test_the_better_of_two(self) -> None:
        """The draft model runs only where the text is not periodic."""
        scores = table(1)
        calls = []
        for line in ({"line": last_token}, {}):
            model = Spy(DraftModel(ScriptedDecoder(scores, **LONG, **line)))
            mixture = Mixture([SuffixAutomaton(), model], costs=[0.0, 0.2])
            target = ScriptedDecoder(scores, **LONG, **line)
            SpeculativeGenerator(target, mixture, num_draft_tokens=4, stop=MaxNewTokens(300))([1, 2])
            calls.append(len(model.budgets))

        assert calls[0] < 10
        assert calls[1] > 45

    def test_threads_may_share_it(self) -> None:
        """The texts equal plain decoding."""
        scores = table(3)
        mixture = mixed(scores)

        def generate(seed: int) -> bool:
            parts: dict[str, Any] = {"sampler": Sample(seed), "stop": MaxNewTokens(30)}
            prompts = [[seed % VOCAB, 1], [2]]
            plain = Generator(ScriptedDecoder(scores, 2, **SHAPE), **parts)
            fast = SpeculativeGenerator(ScriptedDecoder(scores, 2, **SHAPE), mixture, **parts)
            return plain(prompts).ids == fast(prompts).ids

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(generate, range(12)))

    @pytest.mark.parametrize("at", [1, 2, 5])
    def test_a_failure_loses_nothing(self, at: int) -> None:
        """The next text equals plain decoding, and statistics are kept."""
        mixture = Mixture([Failing(ScriptedDrafts(wrong), at), SuffixAutomaton()], costs=[0.0, 0.0])
        parts: dict[str, Any] = {"sampler": Sample(3), "stop": MaxNewTokens(30)}
        target = ScriptedDecoder(table(2), **SHAPE)
        fast = SpeculativeGenerator(target, mixture, num_draft_tokens=4, **parts)
        expected = Generator(target, **parts)([1, 2, 3]).ids
        with pytest.raises(RuntimeError, match="broken"):
            fast([1, 2, 3])
        rate = mixture._selector.acceptance.rate((0, 0), 0.8)

        assert expected == fast([1, 2, 3]).ids
        assert (rate < 0.8) == (at > 1)

    def test_a_failure_leaves_the_row_known(self) -> None:
        """The row's statistics continue; only the failed step's drafts are not counted."""
        mixture = Mixture([Failing(ScriptedDrafts(right), at=2)], costs=[0.0])
        assert [[1, 2]] == draft_ids(mixture, [[0]], [2])
        with pytest.raises(RuntimeError, match="broken"):
            draft_ids(mixture, [[0, 1, 2]], [2])
        assert [[5, 6]] == draft_ids(mixture, [[0, 1, 2, 3, 4]], [2])

        [row] = mixture._rows._idle
        # Two of two, once.
        assert row.acceptance.rate((0, 0), 0.0) == pytest.approx(2 * 0.98 / (2 * 0.98 + 2))

    def test_a_copy_has_learned_nothing(self) -> None:
        """A copy starts without statistics, and works."""
        mixture = Mixture([SuffixAutomaton(), PromptLookup()], costs=[0.0, 0.0])
        draft_ids(mixture, [[1, 2, 1]], [2])
        draft_ids(mixture, [[1, 2, 1, 5]], [2])

        sent = pickle.loads(pickle.dumps(mixture))

        assert sent._selector.acceptance.rate((0, 1), 0.8) == 0.8
        assert [[2, 1]] == draft_ids(sent, [[1, 2, 1]], [2])


def test_a_prompt_that_goes_on_is_no_step() -> None:
    """What a caller adds to a text was not gained by drafts: it does not make them look slow."""
    logits = 3 * torch.randn(53, VOCAB, generator=torch.Generator().manual_seed(0))
    shape: dict[str, Any] = {"max_length": 600, "widths": (1, 5, 128), "scored_width": 5}

    def made() -> SpeculativeGenerator:
        mixture = Mixture([DraftModel(ScriptedDecoder(logits, **shape))], costs=[0.1])
        target = ScriptedDecoder(logits, **shape)
        return SpeculativeGenerator(target, mixture, num_draft_tokens=4, stop=MaxNewTokens(41))

    going_on, fresh = made(), made()
    more = going_on([1, 2]).sequences[0] + [3, 4] * 200

    assert sum(fresh(more).statistics.drafted) <= 1.25 * sum(going_on(more).statistics.drafted)
