"""Acceptance statistics of a mixture's drafters."""

import pytest
from hypothesis import given, strategies as st

from decodekit.speculation.drafters.mixture_acceptance import AcceptanceCounts, PastDraft, expected_accepted


class TestPastDraft:
    @pytest.mark.parametrize(
        ("ids", "wanted", "generated", "outcome"),
        [
            pytest.param([1, 2, 3], 3, [1, 2, 3, 4], (3, 0), id="all-accepted"),
            pytest.param([1, 2, 3], 3, [1, 2, 4], (2, 1), id="one-wrong"),
            pytest.param([1, 2, 3], 3, [4], (0, 1), id="the-first-wrong"),
            pytest.param([1, 2, 3], 3, [1, 2], (2, 0), id="what-is-not-generated-is-not-wrong"),
            pytest.param([1, 2, 3], 3, [], (0, 0), id="nothing-generated"),
            pytest.param([1, -1, -1], 3, [1, 2], (1, 1), id="gave-up"),
            pytest.param([1, -1, -1], 3, [1], (1, 1), id="gave-up-as-far-as-is-generated"),
            pytest.param([], 2, [1], (0, 1), id="no-draft"),
            pytest.param([1, -1, 3], 3, [1, 2, 3], (1, 1), id="nothing-behind-a-hole"),
            pytest.param([1, 2, 3], 2, [1, 2, 4], (2, 0), id="nothing-beyond-what-is-wanted"),
        ],
    )
    def test_a_chain(self, ids: list[int], wanted: int, generated: list[int], outcome: object) -> None:
        """Correct tokens up to the first wrong one."""
        assert outcome == PastDraft("any", ids, wanted).outcome(generated)

    @pytest.mark.parametrize(
        ("generated", "outcome"),
        [
            # 1 and 2 are children of the root, 3 and 4 of 2, 5 of 4.
            ([1, 9], (1, 1)),
            ([2, 3, 9], (2, 1)),
            ([2, 4, 5], (3, 0)),
            ([2, 4], (2, 0)),
            ([2, 5], (1, 1)),
            ([3], (0, 1)),
        ],
    )
    def test_a_tree(self, generated: list[int], outcome: tuple[int, int]) -> None:
        """Along the generated branch."""
        draft = PastDraft("any", [1, 2, 3, 4, 5, -1], 3, [-1, -1, 1, 1, 3, 0])

        assert outcome == draft.outcome(generated)

    @given(st.lists(st.integers(0, 2), max_size=5), st.lists(st.integers(0, 2), max_size=6))
    def test_a_chain_is_a_tree(self, ids: list[int], generated: list[int]) -> None:
        """A tree with parents -1, 0, 1, ..."""
        chain = PastDraft("any", ids, 5)
        tree = PastDraft("any", ids, 5, list(range(-1, len(ids) - 1)))

        assert chain.outcome(generated) == tree.outcome(generated)


class TestAcceptanceCounts:
    def test_the_prior_weighs_two_tokens(self) -> None:
        """Without observations the rate is the prior."""
        counts = AcceptanceCounts()
        assert counts.rate("a", 0.5) == 0.5

        counts.learn("a", 3, 1)

        # 3 right and 1 wrong, and 2 of which half are right.
        assert counts.rate("a", 0.5) == (3 + 1) / (4 + 2)
        assert counts.rate("b", 0.5) == 0.5

    def test_fades(self) -> None:
        """Old observations lose their weight."""
        counts = AcceptanceCounts()
        counts.learn("a", 0, 50)
        rates = []
        for _ in range(500):
            rates.append(counts.rate("a", 0.8))
            counts.decay()

        assert sorted(rates) == rates
        assert 0.8 * 2 / 52 == pytest.approx(rates[0])
        assert rates[-1] > 0.79


class TestExpected:
    def test_adds_up_the_chances(self) -> None:
        """1/2 + 1/4 + 1/8."""
        assert expected_accepted(0.5, 3) == 0.875
        assert expected_accepted(1.0, 4) == 4
        assert expected_accepted(0.0, 4) == 0
        assert expected_accepted(0.7, 0) == 0
