"""Drafting from suffix matches of any length."""

import copy
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.speculation import PromptLookup, SpeculativeGenerator, SuffixAutomaton
from decodekit.testing import ScriptedDecoder, last_token

from ..same_text import Failing, check_same_text, draft_ids, history, table

TOKENS = st.integers(0, 2)


def longest(tokens: list[int], sequence: list[int]) -> tuple[int, int]:
    """The longest end of *tokens* in *sequence* with something behind it, and where it ends latest."""
    found = (0, 0)
    for end in range(1, len(sequence)):
        size = 0
        while size < min(end, len(tokens)) and sequence[end - size - 1] == tokens[len(tokens) - size - 1]:
            size += 1
        # The whole text is not its own match.
        found = max(found, (size, end))
    return found if found[0] else (0, 0)


def brute_force(tokens: list[int], corpus: list[list[int]], min_match: int, budget: int) -> list[int]:
    """Every place, in the text and elsewhere."""
    size, end = longest(tokens, tokens)
    drafted, text = [], list(tokens)
    for i in range(budget if size else 0):
        text.append(text[end + i])
        drafted.append(text[-1])
    for sequence in corpus:
        other, end = longest(tokens, sequence)
        # Later sequences count as later.
        if other and (other > size or (other == size and size > longest(tokens, tokens)[0])):
            size, drafted = other, sequence[end : end + budget]
    return drafted if size >= min_match else []


class TestDraftTokens:
    @given(
        st.lists(TOKENS, min_size=1, max_size=40),
        st.lists(st.lists(TOKENS, max_size=12), max_size=4),
        st.integers(1, 4),
        st.integers(1, 6),
    )
    def test_what_followed_the_longest_and_latest_match(
        self, tokens: list[int], corpus: list[list[int]], min_match: int, budget: int
    ) -> None:
        """Equal to looking at every place; the text's own counts first; garbage behind is not read."""
        drafter = SuffixAutomaton(corpus, min_match)

        assert [brute_force(tokens, corpus, min_match, budget)] == draft_ids(drafter, [tokens], [budget])

    @given(st.lists(TOKENS, min_size=1, max_size=30), st.integers(1, 5))
    def test_agrees_with_the_lookup(self, tokens: list[int], budget: int) -> None:
        """Where the n-gram's length is no limit, up to the end of the text, where that one stops."""
        [expected] = draft_ids(PromptLookup(max_ngram=30), [tokens], [budget])
        [actual] = draft_ids(SuffixAutomaton(), [tokens], [budget])

        assert expected == actual[: len(expected)]
        assert bool(expected) == bool(actual)

    @given(st.lists(TOKENS, min_size=1, max_size=30), st.integers(1, 4))
    def test_evidence_is_that_of_the_match(self, tokens: list[int], shortest: int) -> None:
        """As of the lookup, whose n-gram is no limit; 0 where the match is too short to be believed."""
        size, end = longest(tokens, tokens)
        ends = [e for e in range(size, end) if tokens[e - size : e] == tokens[end - size : end]]
        alike = bool(ends) and tokens[ends[-1]] == tokens[end]
        expected = (2 * size + 1 if alike else 1) if ends else size + 1
        now, budget = history([tokens, tokens]), torch.tensor([3, 0])
        for drafter in (SuffixAutomaton(min_match=shortest), PromptLookup(30, shortest)):
            evidence, first_tokens = drafter.foresee(now, budget)

            assert [expected if size >= shortest else 0, 0] == evidence.tolist()
            assert [tokens[end] if size >= shortest else -1, -1] == first_tokens.tolist()
            assert evidence.tolist() == drafter.evidence(now, budget).tolist()

    def test_evidence_of_a_corpus(self) -> None:
        """Of both of its occurrences, in whatever sequence."""
        for follows, expected in ((3, 5), (4, 1)):
            drafter = SuffixAutomaton([[1, 2, 3, 9], [5, 1, 2, follows, 9]])

            assert [expected] == drafter.evidence(history([[1, 2]]), torch.tensor([1])).tolist()

    def test_repeats_with_the_text(self) -> None:
        """A copy that reaches the end of the text goes on with the copy."""
        assert [[2, 1, 2, 1, 2]] == draft_ids(SuffixAutomaton(), [[1, 2, 1]], [5])

    def test_not_beyond_the_end_of_a_sequence(self) -> None:
        """Nothing follows there, neither the next sequence nor the same one."""
        assert [[3]] == draft_ids(SuffixAutomaton([[1, 2, 3], [4, 5]]), [[1, 2]], [5])
        assert [[]] == draft_ids(SuffixAutomaton([[1, 2, 3], [4, 5]]), [[7, 3]], [5])

    def test_rows_have_budgets_of_their_own(self) -> None:
        """None at all for an idle one."""
        rows = [[1, 2, 3, 1], [1, 2, 3, 1], [5], [1, 2, 3, 1]]

        assert [[2], [], [], [2, 3, 1]] == draft_ids(SuffixAutomaton(), rows, [1, 0, 3, 3])
        assert [[], []] == draft_ids(SuffixAutomaton(), rows[:2], [0, 0])


class TestIsACache:
    @given(st.lists(st.lists(TOKENS, min_size=1, max_size=14), min_size=1, max_size=12), st.data())
    def test_independent_of_earlier_queries(self, texts: list[list[int]], data: st.DataObject) -> None:
        """Texts that grow, shrink and change rows give the same drafts as a new drafter."""
        corpus = [[0, 1, 2, 0, 0, 1], [2, 2, 1]]
        drafter = SuffixAutomaton(corpus)
        for _ in range(6):
            rows = data.draw(st.lists(st.sampled_from(texts), min_size=1, max_size=4))
            rows = [(row + row)[: data.draw(st.integers(1, 2 * len(row)))] for row in rows]

            assert draft_ids(SuffixAutomaton(corpus), rows, [4] * len(rows)) == draft_ids(
                drafter, rows, [4] * len(rows)
            )

    def test_a_new_token_costs_a_few_steps(self) -> None:
        """Only new tokens are processed, however long the text."""
        dice = random.Random(2)
        tokens = [dice.randrange(60) for _ in range(2000)]
        drafter = SuffixAutomaton()
        draft_ids(drafter, [tokens[:1500]], [4])
        [text] = drafter._texts._idle
        before = text.index.steps
        for n in range(1501, 2001):
            draft_ids(drafter, [tokens[:n]], [4])

        assert text is drafter._texts._idle[0]
        assert text.index.steps - before < 6 * 500

    def test_does_not_keep_the_callers_history(self) -> None:
        """The loop writes into the tensor that it has shown."""
        drafter, now = SuffixAutomaton(), history([[1, 2, 1]])
        drafter.evidence(now, torch.tensor([1]))
        now.ids[0, 0, :3] = torch.tensor([3, 3, 3])

        assert [3] == drafter.evidence(now, torch.tensor([1])).tolist()

    def test_threads_may_share_it(self) -> None:
        """Each gets the same drafts as alone."""
        drafter = SuffixAutomaton([[0, 1, 2, 0, 0, 1] * 3])

        def walk(seed: int) -> list[list[list[int]]]:
            dice, text, seen = random.Random(seed), [0], []
            for _ in range(60):
                text.append(dice.randrange(3))
                seen.append(draft_ids(drafter, [text], [4]))
            return seen

        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(walk, range(12)))

        assert list(map(walk, range(12))) == together

    def test_may_be_copied(self) -> None:
        """The corpus is copied, the cache is not."""
        drafter = SuffixAutomaton([[1, 2, 3]], min_match=2)
        draft_ids(drafter, [[1, 2]], [2])

        assert [[3]] == draft_ids(copy.deepcopy(drafter), [[1, 2]], [2])


class TestCorpus:
    def test_one_sequence_or_several(self) -> None:
        """Lists, tuples and arrays of ids."""
        expected = ((1, 2, 3),)

        assert expected == SuffixAutomaton([1, 2, 3]).corpus
        assert expected == SuffixAutomaton([(1, 2, 3)]).corpus
        assert expected == SuffixAutomaton(np.array([1, 2, 3])).corpus
        assert expected == SuffixAutomaton(torch.tensor([[1, 2, 3]])).corpus
        assert () == SuffixAutomaton().corpus

    @pytest.mark.parametrize("corpus", ["text", 3, ["text"], [1.0], [True], [[1, "a"]], [1, [2]]])
    def test_refuses_what_is_no_ids(self, corpus: object) -> None:
        """A text has to be tokenized first."""
        with pytest.raises(TypeError, match="'corpus' must be token ids >= 0, or lists of them: got"):
            SuffixAutomaton(corpus)

    def test_refuses_negative_ids(self) -> None:
        """-1 is no token."""
        with pytest.raises(ValueError, match="'corpus' must be token ids >= 0, or lists of them: got -1"):
            SuffixAutomaton([[3, -1]])

    @pytest.mark.parametrize(("value", "error"), [(0, ValueError), (1.5, TypeError), (True, TypeError)])
    def test_refuses_a_match_of_nothing(self, value: object, error: type[Exception]) -> None:
        """The shortest match has a token."""
        with pytest.raises(error, match="'min_match'"):
            SuffixAutomaton(min_match=value)  # type: ignore[arg-type]


class TestGeneration:
    def test_same_text(self) -> None:
        """The text equals plain decoding, with a corpus and without, and some draft tokens are accepted."""
        assert check_same_text(lambda scores: SuffixAutomaton()) > 50
        assert check_same_text(lambda scores: SuffixAutomaton([[1, 2, 3, 4, 5, 6, 7, 8], [3, 1]])) > 50

    def test_a_text_that_repeats_itself_is_drafted_well(self) -> None:
        """On periodic text every draft token is accepted after the first step."""
        circle = torch.eye(6).roll(1, dims=1)
        fast = SpeculativeGenerator(
            ScriptedDecoder(circle, line=last_token),
            SuffixAutomaton(),
            num_draft_tokens=4,
            stop=MaxNewTokens(41),
        )
        statistics = fast([0]).statistics

        assert statistics.drafted == statistics.accepted
        assert [7, 7, 7, 7] == statistics.accepted

    def test_a_failure_leaves_the_generator_usable(self) -> None:
        """The next text equals plain decoding."""
        failing = Failing(SuffixAutomaton(), at=3)
        parts = {"sampler": Sample(3), "stop": MaxNewTokens(20)}
        fast = SpeculativeGenerator(ScriptedDecoder(table(1)), failing, num_draft_tokens=4, **parts)
        with pytest.raises(RuntimeError, match="broken"):
            fast([1, 2, 3])

        assert Generator(ScriptedDecoder(table(1)), **parts)([1, 2, 3]).ids == fast([1, 2, 3]).ids
