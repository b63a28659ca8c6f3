"""Top-k filtering."""

import pytest

from decodekit.processors import TopK

from ..by_hand import kept, run

PROBS = [0.15, 0.5, 0.05, 0.3]


class TestTopK:
    @pytest.mark.parametrize(
        ("k", "expected"),
        [
            pytest.param(1, [1], id="one"),
            pytest.param(2, [1, 3], id="two"),
            pytest.param(4, [0, 1, 2, 3], id="all"),
            pytest.param(2**63 - 1, [0, 1, 2, 3], id="more-than-there-are"),
            pytest.param(0, [0, 1, 2, 3], id="off"),
            pytest.param([2], [1, 3], id="per-row"),
            pytest.param([0], [0, 1, 2, 3], id="per-row-off"),
            pytest.param([9], [0, 1, 2, 3], id="per-row-more-than-there-are"),
        ],
    )
    def test_keeps_the_k_largest(self, k: int | list[int], expected: list[int]) -> None:
        """The k likeliest stay."""
        assert expected == kept(TopK(k), PROBS)

    def test_keeps_all_ties_at_the_kth(self) -> None:
        """Nothing but the logit decides: equal tokens stay or go together."""
        assert [0, 1, 3] == kept(TopK(2), [0.25, 0.4, 0.1, 0.25])

    def test_ties_first_keeps_exactly_k(self) -> None:
        """Of the tokens tied with the k-th, the lowest ids; ties above it do not matter."""
        assert [0, 1] == kept(TopK(2, ties="first"), [0.25, 0.4, 0.1, 0.25])
        assert [0, 1, 2] == kept(TopK(3, ties="first"), [0.1, 0.3, 0.3, 0.1, 0.1, 0.1])

    def test_refuses_ties_it_does_not_know(self) -> None:
        """By name."""
        with pytest.raises(ValueError, match="'ties' must be"):
            TopK(2, ties="last")

    def test_keeps_logits_as_they_are(self) -> None:
        """What stays is not rescaled."""
        assert [3.0, -float("inf"), 2.0] == run(TopK(2), [3.0, 1.0, 2.0])

    def test_with_fewer_survivors_than_k_changes_nothing(self) -> None:
        """Forbidden tokens do not come back, and none is lost."""
        assert [1, 3] == kept(TopK(3), [0.0, 0.6, 0.0, 0.4])

    @pytest.mark.parametrize("k", [-1, [5, -1]])
    def test_refuses_negative_k(self, k: int | list[int]) -> None:
        """Off is 0, not -1."""
        with pytest.raises(ValueError, match=r"'k' must be >= 0 \(0 is off\).*: got .*-1"):
            TopK(k)

    @pytest.mark.parametrize("k", [1.5, True, "5", None, [1.0], [True]])
    def test_refuses_what_is_no_integer(self, k: int) -> None:
        """A k of another type is a mistake."""
        with pytest.raises(TypeError, match="'k' must be an integer, or integers one per row: got "):
            TopK(k)

    def test_prints_as_it_was_written(self) -> None:
        """The representation is the call, without what is kept for speed."""
        assert "TopK(k=50, ties='keep')" == repr(TopK(50))
