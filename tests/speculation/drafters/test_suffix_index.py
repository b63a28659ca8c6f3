"""The suffix automaton against brute force."""

import random

import pytest
from hypothesis import given, strategies as st

from decodekit.speculation.drafters.suffix_index import SuffixIndex

TEXTS = st.one_of(
    st.lists(st.integers(0, 1), max_size=40),
    st.lists(st.integers(0, 3), max_size=60),
    # Periodic texts with interruptions.
    st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=4), st.integers(1, 9)), max_size=5).map(
        lambda runs: [token for part, times in runs for token in part * times]
    ),
)


def longest_and_latest(tokens: list[int]) -> tuple[int, int, int]:
    """Brute force: every length from the longest, the two latest ends."""
    n = len(tokens)
    for length in range(n - 1, 0, -1):
        ends = [e for e in range(n - 1, length - 1, -1) if tokens[e - length : e] == tokens[n - length :]]
        if ends:
            return length, *[*ends, 0][:2]
    return 0, 0, 0


class TestRepeated:
    @given(TEXTS)
    def test_after_every_token(self, tokens: list[int]) -> None:
        """The longest suffix that occurred before, and where it ended latest, twice."""
        index = SuffixIndex()
        for n, token in enumerate(tokens):
            index.append(token)

            assert longest_and_latest(tokens[: n + 1]) == index.repeated()

    @given(TEXTS, st.randoms(use_true_random=False))
    def test_independent_of_the_time_of_queries(self, tokens: list[int], dice: random.Random) -> None:
        """After several tokens, and twice in a row."""
        index = SuffixIndex()
        for n, token in enumerate(tokens):
            index.append(token)
            for _ in range(dice.choice([0, 0, 0, 1, 2])):
                assert longest_and_latest(tokens[: n + 1]) == index.repeated()


class TestFollow:
    @given(TEXTS, TEXTS)
    def test_the_longest_suffix_of_another_text(self, tokens: list[int], other: list[int]) -> None:
        """And its two latest ends in this text."""
        index, state, length = SuffixIndex(tokens), 0, 0
        for n, token in enumerate(other):
            state, length = index.follow(state, length, token)
            read = other[: n + 1]
            ends = [
                (size, end)
                for size in range(1, len(read) + 1)
                for end in range(size, len(tokens) + 1)
                if tokens[end - size : end] == read[len(read) - size :]
            ]

            longest = max((size for size, _ in ends), default=0)
            latest = sorted((end for size, end in ends if size == longest), reverse=True)

            assert longest == length
            assert not longest or (*latest, 0)[:2] == index.ends(state, len(tokens))


N = 4096


def _text(name: str) -> list[int]:
    dice = random.Random(5)
    line = [dice.randrange(50) for _ in range(40)]
    return {
        "binary": [dice.randrange(2) for _ in range(N)],
        "many-tokens": [dice.randrange(30_000) for _ in range(N)],
        "one-token": [1] * N,
        "two-in-turn": [1, 2] * (N // 2),
        "lines": (line * N)[:N],
        "lines-with-changes": [dice.randrange(50) if dice.random() < 0.05 else t for t in (line * N)[:N]],
    }[name]


class TestSteps:
    @pytest.mark.parametrize(
        ("name", "most"),
        [
            ("binary", 17),
            ("many-tokens", 4),
            ("one-token", 4),
            ("two-in-turn", 4),
            ("lines", 4),
            ("lines-with-changes", 20),
        ],
    )
    def test_a_token_costs_a_few(self, name: str, most: int) -> None:
        """Queried after each of 4,096 tokens: a bounded number of states per token, for any text."""
        index = SuffixIndex()
        for token in _text(name):
            index.append(token)
            index.repeated()

        assert index.steps < most * N

    def test_at_worst_two_chains(self) -> None:
        """Periodic text with growing periods: two chains of links per token."""
        index = SuffixIndex()
        for token in [1] * 400 + [2] + [1] * 400:
            index.append(token)
            before = index.steps
            index.repeated()

            assert index.steps - before <= 2 * 401

    def test_the_construction_alone_is_linear(self) -> None:
        """At most three transitions per token (Blumer et al., 1985)."""
        for name in ("binary", "one-token", "lines-with-changes"):
            assert SuffixIndex(_text(name)).steps < 3 * N
