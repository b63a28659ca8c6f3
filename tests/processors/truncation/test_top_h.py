"""Top-H decoding."""

import pytest

from decodekit.processors import TopH

from ..by_hand import kept, run

# In bits they contribute 0.375, 0.5, 0.5 and 0.375 of 1.75.
HALVED = [0.125, 0.5, 0.25, 0.125]


class TestTopH:
    @pytest.mark.parametrize(
        ("h", "expected"),
        [
            pytest.param(0.01, [1], id="the-top-token-stays"),
            pytest.param(0.3, [1], id="pays-for-one"),
            pytest.param(0.6, [1, 2], id="pays-for-two"),
            pytest.param(0.8, [0, 1, 2], id="the-lower-of-two-equals"),
            pytest.param(0.99, [0, 1, 2], id="not-quite-all"),
            pytest.param(1.0, [0, 1, 2, 3], id="all"),
            pytest.param([0.6], [1, 2], id="per-row"),
        ],
    )
    def test_keeps_what_the_budget_pays_for(self, h: float | list[float], expected: list[int]) -> None:
        """The token that exceeds the budget goes."""
        assert expected == kept(TopH(h), HALVED)

    @pytest.mark.parametrize(("h", "expected"), [(0.2, [0]), (0.3, [0]), (0.6, [0, 1]), (0.9, [0, 1, 2])])
    def test_takes_the_lower_of_equal_ids_first(self, h: float, expected: list[int]) -> None:
        """Each of four contributes a quarter."""
        assert expected == kept(TopH(h), [0.25, 0.25, 0.25, 0.25])

    @pytest.mark.parametrize(
        ("top_n", "expected"),
        [(1, [1]), (2, [1, 2]), (3, [0, 1, 2]), (10**4, [0, 1, 2, 3])],
    )
    def test_looks_at_the_top_n_only(self, top_n: int, expected: list[int]) -> None:
        """A budget of 1 pays for all of those, the lower of equal ids among them."""
        assert expected == kept(TopH(1.0, top_n=top_n), HALVED)

    def test_measures_the_entropy_of_those_alone(self) -> None:
        """Of 2/3 and 1/3 the first contributes 0.42, of the whole row 0.29."""
        assert [1] == kept(TopH(0.4, top_n=2), HALVED)
        assert [1, 2] == kept(TopH(0.6), HALVED)

    def test_does_not_pay_for_the_impossible(self) -> None:
        """A token that adds nothing to the entropy would be within any budget."""
        assert [-float("inf"), 1000.0] == run(TopH(1.0), [0.0, 1000.0])

    def test_tells_the_unlikely_from_the_more_unlikely(self) -> None:
        """Where one token is all but certain, the next holds nearly all of the entropy."""
        assert [40.0, -float("inf"), -float("inf")] == run(TopH(0.5), [40.0, 1.0, 0.0])

    def test_resolves_what_certainty_leaves(self) -> None:
        """
        The first token's own share counts, though its probability rounds to 1 in float32.

        It is 0.053 and the second's 0.895: 0.948 together; without the first it would be 0.945.
        """
        assert [0] == kept(TopH(0.946), [1 - 2.1e-8, 2e-8, 1e-9])
        assert [0, 1] == kept(TopH(0.95), [1 - 2.1e-8, 2e-8, 1e-9])

    @pytest.mark.parametrize("h", [0.0, -0.1, 1.1, float("nan"), [0.5, 2.0]])
    def test_refuses_what_is_no_share(self, h: float | list[float]) -> None:
        """A budget is a part of the entropy."""
        with pytest.raises(ValueError, match=r"'h' must be in \(0, 1\].*: got "):
            TopH(h)

    @pytest.mark.parametrize("n", [0, 2**20 + 1, 2**62])
    def test_refuses_numbers_of_tokens(self, n: int) -> None:
        """Of none nothing would stay, and memory is taken for all."""
        with pytest.raises(ValueError, match=f"'top_n' must be 1 to 1048576: got {n}"):
            TopH(0.5, top_n=n)
