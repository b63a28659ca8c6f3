"""Locally typical sampling."""

import pytest

from decodekit.processors import Typical

from ..by_hand import kept

# The entropy is 1.75 bits; the surprises of 3, 1, 2 and 3 bits lie 1.25, 0.75, 0.25, 1.25 from it.
HALVED = [0.125, 0.5, 0.25, 0.125]


class TestTypical:
    @pytest.mark.parametrize(
        ("mass", "expected"),
        [
            pytest.param(0.01, [2], id="the-most-typical-stays"),
            pytest.param(0.25, [2], id="reached-exactly-by-one"),
            pytest.param(0.26, [1, 2], id="missed-by-one"),
            pytest.param(0.75, [1, 2], id="reached-exactly-by-two"),
            pytest.param(0.76, [0, 1, 2, 3], id="equals-stay-together"),
            pytest.param(1.0, [0, 1, 2, 3], id="off"),
            pytest.param([0.75], [1, 2], id="per-row"),
            pytest.param([1], [0, 1, 2, 3], id="per-row-off"),
        ],
    )
    def test_keeps_the_most_typical(self, mass: float | list[float], expected: list[int]) -> None:
        """Until they hold the mass; the likeliest token is only the second."""
        assert expected == kept(Typical(mass), HALVED)

    def test_measures_what_the_survivors_make_of_it(self) -> None:
        """Masked tokens are no part of the entropy."""
        assert [1, 4] == kept(Typical(0.75), [0.0, 0.25, 0.0625, 0.0, 0.125, 0.0625])

    @pytest.mark.parametrize(
        ("min_tokens", "expected"), [(1, [2]), (2, [1, 2]), (3, [0, 1, 2, 3]), (99, [0, 1, 2, 3])]
    )
    def test_spares_the_most_typical(self, min_tokens: int, expected: list[int]) -> None:
        """So many stay however little mass is asked for, with the tie of the last."""
        assert expected == kept(Typical(0.01, min_tokens=min_tokens), HALVED)

    def test_per_row_off_loses_nothing(self) -> None:
        """Not even tokens whose probability rounds to 0."""
        assert [0, 1, 2] == kept(Typical([1.0]), [0.5, 0.5, 1e-30])

    @pytest.mark.parametrize("mass", [0.0, -0.1, 1.1, float("nan"), [0.5, 2.0]])
    def test_refuses_what_is_no_mass(self, mass: float | list[float]) -> None:
        """A mass is a probability."""
        with pytest.raises(ValueError, match=r"'mass' must be in \(0, 1\].*: got "):
            Typical(mass)

    def test_refuses_to_spare_none(self) -> None:
        """A row without a token is no distribution."""
        with pytest.raises(ValueError, match="'min_tokens' must be >= 1: got 0"):
            Typical(0.5, min_tokens=0)
