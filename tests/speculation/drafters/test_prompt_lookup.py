"""Prompt lookup decoding."""

import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import Generator, Greedy, History, MaxNewTokens, SamplingPipeline
from decodekit.speculation import PromptLookup, SpeculativeGenerator, SuffixAutomaton
from decodekit.testing import ScriptedDecoder, last_token


def propose(lookup: PromptLookup, tokens: list[int], budget: int) -> list[int]:
    """Draft of *lookup* after *tokens*."""
    history = History(
        torch.tensor([[[*tokens, 7, 7, 7]]]),
        torch.tensor([[len(tokens)]]),
        torch.tensor([1]),
        torch.tensor([0]),
    )
    ids = lookup.propose(history, torch.tensor([budget]), SamplingPipeline(None, Greedy())).ids[0].tolist()
    return [i for i in ids if i >= 0]


def brute_force(tokens: list[int], max_ngram: int, min_ngram: int, budget: int) -> list[int]:
    """Brute force: every n from the longest, every end from the latest."""
    for n in range(max_ngram, min_ngram - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[len(tokens) - n :]:
                continued = list(tokens)
                while len(continued) < len(tokens) + budget:
                    # What follows is looked up in the draft too.
                    continued.append(continued[end + len(continued) - len(tokens)])
                return continued[len(tokens) :]
    return []


class TestPromptLookup:
    @given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 5), st.data())
    def test_copies_what_followed_the_longest_and_latest_match(
        self, tokens: list[int], max_ngram: int, data: st.DataObject
    ) -> None:
        """Equal to brute force over n-grams and positions; garbage after the row is not read."""
        min_ngram = data.draw(st.integers(1, max_ngram))
        lookup = PromptLookup(max_ngram, min_ngram)

        for budget in (1, 4, 9):
            assert brute_force(tokens, max_ngram, min_ngram, budget) == propose(lookup, tokens, budget)

    def test_prefers_the_latest(self) -> None:
        """Of two occurrences the later one's continuation is drafted."""
        assert [3, 1] == propose(PromptLookup(), [1, 2, 1, 3, 1], 2)

    def test_repeating_text_is_drafted_well(self) -> None:
        """On periodic text nearly every draft token is accepted."""
        circle = torch.eye(6).roll(1, dims=1)
        fast = SpeculativeGenerator(
            ScriptedDecoder(circle, line=last_token),
            PromptLookup(),
            num_draft_tokens=4,
            stop=MaxNewTokens(40),
        )
        result = fast([0])
        plain = Generator(ScriptedDecoder(circle, line=last_token), stop=MaxNewTokens(40))([0])

        assert plain.ids == result.ids
        assert result.statistics.mean_accepted_length > 3

    @pytest.mark.parametrize("period", [1, 2, 3])
    def test_a_short_period_is_continued_at_full_length(self, period: int) -> None:
        """As by the suffix automaton: eight of eight draft tokens, and the bonus token."""
        circle = torch.eye(period).roll(1, dims=1)
        taus = []
        for drafter in (PromptLookup(), SuffixAutomaton()):
            decoder = ScriptedDecoder(circle, line=last_token, max_length=128, widths=(1, 9), scored_width=9)
            fast = SpeculativeGenerator(decoder, drafter, num_draft_tokens=8, stop=MaxNewTokens(91))
            taus.append(fast([0] * 3 if period == 1 else list(range(period)) * 3).statistics)

        assert [9.0, 9.0] == [statistics.mean_accepted_length for statistics in taus]

    def test_evidence_of_the_longest_ngram(self) -> None:
        """Of four tokens, however long the match: one occurrence, and two that went on alike or not."""
        once, alike, apart = [1, 2, 3, 4, 5] * 2, [1, 2, 3, 4, 5] * 3, [9, 1, 2, 3, 4, 8, 9, 1, 2, 3, 4, 7]
        for tokens, expected in ((once, 5), (alike, 9), ([*apart, 1, 2, 3, 4], 1)):
            history = History(
                torch.tensor([[tokens]]), torch.tensor([[len(tokens)]]), torch.tensor([1]), torch.tensor([0])
            )

            assert [expected] == PromptLookup().evidence(history, torch.tensor([4])).tolist()

    def test_bounds_must_be_in_order(self) -> None:
        """A shortest n-gram above the longest is refused."""
        with pytest.raises(ValueError, match="'min_ngram' must be <= max_ngram, 2: got 3"):
            PromptLookup(2, 3)
