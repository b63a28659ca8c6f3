"""Min-p."""

import pytest

from decodekit.processors import MinP

from ..by_hand import kept

PROBS = [0.15, 0.5, 0.05, 0.3]


class TestMinP:
    @pytest.mark.parametrize(
        ("p", "expected"),
        [
            # The floor is p * 0.5.
            pytest.param(0.05, [0, 1, 2, 3], id="floor-0.025"),
            pytest.param(0.2, [0, 1, 3], id="floor-0.1"),
            pytest.param(0.5, [1, 3], id="floor-0.25"),
            pytest.param(0.9, [1], id="floor-0.45"),
            pytest.param(0.0, [0, 1, 2, 3], id="off"),
            pytest.param([0.2], [0, 1, 3], id="per-row"),
            pytest.param([0], [0, 1, 2, 3], id="per-row-off"),
        ],
    )
    def test_drops_what_is_below_the_floor(self, p: float | list[float], expected: list[int]) -> None:
        """The floor is p times the largest probability."""
        assert expected == kept(MinP(p), PROBS)

    def test_at_1_keeps_the_top_token_and_its_ties(self) -> None:
        """What lies on the floor stays."""
        assert [0, 2] == kept(MinP(1.0), [0.375, 0.25, 0.375])

    @pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), [0.5, 2.0]])
    def test_refuses_p_outside_its_range(self, p: float | list[float]) -> None:
        """A floor above the likeliest token would empty the row."""
        with pytest.raises(ValueError, match=r"'p' must be in \[0, 1\].*: got "):
            MinP(p)
