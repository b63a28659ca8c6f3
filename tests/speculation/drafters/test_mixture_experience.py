"""How often guesses stood."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodekit.speculation.drafters.mixture_experience import Experience, Guess, expected


class TestGuess:
    @pytest.mark.parametrize(
        ("ids", "wanted", "said", "outcome"),
        [
            pytest.param([1, 2, 3], 3, [1, 2, 3, 4], (3, 0), id="all-stood"),
            pytest.param([1, 2, 3], 3, [1, 2, 4], (2, 1), id="one-wrong"),
            pytest.param([1, 2, 3], 3, [4], (0, 1), id="the-first-wrong"),
            pytest.param([1, 2, 3], 3, [1, 2], (2, 0), id="what-is-not-said-is-not-wrong"),
            pytest.param([1, 2, 3], 3, [], (0, 0), id="nothing-said"),
            pytest.param([1, -1, -1], 3, [1, 2], (1, 1), id="gave-up"),
            pytest.param([1, -1, -1], 3, [1], (1, 1), id="gave-up-as-far-as-is-said"),
            pytest.param([], 2, [1], (0, 1), id="no-guess"),
            pytest.param([1, -1, 3], 3, [1, 2, 3], (1, 1), id="nothing-behind-a-hole"),
            pytest.param([1, 2, 3], 2, [1, 2, 4], (2, 0), id="nothing-beyond-what-is-wanted"),
        ],
    )
    def test_a_chain(self, ids: list[int], wanted: int, said: list[int], outcome: tuple[int, int]) -> None:
        """Right ones up to the first wrong one."""
        assert outcome == Guess("any", ids, wanted).against(said)

    @pytest.mark.parametrize(
        ("said", "outcome"),
        [
            # 1 and 2 may come first, 3 or 4 behind 2, 5 behind 4.
            ([1, 9], (1, 1)),
            ([2, 3, 9], (2, 1)),
            ([2, 4, 5], (3, 0)),
            ([2, 4], (2, 0)),
            ([2, 5], (1, 1)),
            ([3], (0, 1)),
        ],
    )
    def test_a_tree(self, said: list[int], outcome: tuple[int, int]) -> None:
        """Along the branch that was said."""
        guess = Guess("any", [1, 2, 3, 4, 5, -1], 3, [-1, -1, 1, 1, 3, 0])

        assert outcome == guess.against(said)

    @given(st.lists(st.integers(0, 2), max_size=5), st.lists(st.integers(0, 2), max_size=6))
    def test_a_chain_is_a_tree(self, ids: list[int], said: list[int]) -> None:
        """With parents -1, 0, 1, ..."""
        chain = Guess("any", ids, 5)
        tree = Guess("any", ids, 5, list(range(-1, len(ids) - 1)))

        assert chain.against(said) == tree.against(said)


class TestExperience:
    def test_the_prior_counts_as_two_guesses(self) -> None:
        """Where nothing is known, it is all there is."""
        experience = Experience()
        assert experience.rate("a", 0.5) == 0.5

        experience.learn("a", 3, 1)

        # 3 right and 1 wrong, and 2 of which half are right.
        assert experience.rate("a", 0.5) == (3 + 1) / (4 + 2)
        assert experience.rate("b", 0.5) == 0.5

    def test_fades(self) -> None:
        """What is not seen for long is as good as unknown."""
        experience = Experience()
        experience.learn("a", 0, 50)
        rates = []
        for _ in range(500):
            rates.append(experience.rate("a", 0.8))
            experience.fade()

        assert sorted(rates) == rates
        assert 0.8 * 2 / 52 == pytest.approx(rates[0])
        assert rates[-1] > 0.79


class TestExpected:
    def test_adds_up_the_chances(self) -> None:
        """One half, a quarter, an eighth."""
        assert expected(0.5, 3) == 0.875
        assert expected(1.0, 4) == 4
        assert expected(0.0, 4) == 0
        assert expected(0.7, 0) == 0
