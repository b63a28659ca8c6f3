"""p-less sampling."""

import pytest
import torch

from decodekit.processors import PLess

from ..by_hand import NOTHING, kept


class TestPLess:
    @pytest.mark.parametrize(
        ("probs", "expected"),
        [
            # 0.25 + 0.0625 + 2 * 0.015625 = 0.34
            pytest.param([0.125, 0.5, 0.25, 0.125], [1], id="peaked"),
            # 0.1225 + 0.09 + 0.04 + 0.0225 = 0.275
            pytest.param([0.2, 0.35, 0.15, 0.3], [1, 3], id="flatter"),
            # 0.81 + 0.01 = 0.82
            pytest.param([0.9, 0.1], [0], id="certain"),
            # 0.49 + 0.09 = 0.58
            pytest.param([0.0, 0.7, 0.0, 0.3], [1], id="masked"),
        ],
    )
    def test_drops_what_is_below_the_sum_of_squares(self, probs: list[float], expected: list[int]) -> None:
        """The chance that two draws agree is the floor."""
        assert expected == kept(PLess(), probs)

    @pytest.mark.parametrize("n", [1, 2, 3, 7, 50, 999])
    def test_leaves_a_uniform_distribution_whole(self, n: int) -> None:
        """There the floor is exactly the probability of each, whether or not that can be written down."""
        assert list(range(n)) == kept(PLess(), torch.full((n,), 1 / n).tolist())

    def test_is_the_same_among_masked_tokens_at_the_edge(self) -> None:
        """For the two neighbouring logits between which a token begins to stay, in 50 distributions."""
        rng = torch.Generator().manual_seed(0)
        for _ in range(50):
            survivors = torch.randn(50, generator=rng, dtype=torch.float64)
            places = torch.randperm(1000, generator=rng)[:50].sort().values
            goes, stays = -9.0, 9.0
            while goes < (middle := (goes + stays) / 2) < stays:
                survivors[0] = middle
                if PLess()(survivors[None, None], NOTHING)[0, 0, 0] == -torch.inf:
                    goes = middle
                else:
                    stays = middle
            for edge in (goes, stays):
                survivors[0] = edge
                logits = torch.full((1000,), -torch.inf, dtype=torch.float64).index_copy(0, places, survivors)

                expected = PLess()(survivors[None, None], NOTHING)[0, 0]

                assert torch.equal(expected, PLess()(logits[None, None], NOTHING)[0, 0, places])

    def test_has_nothing_to_set(self) -> None:
        """And prints so."""
        assert "PLess()" == repr(PLess())
