"""Sharding of single tensors; whole models are in :mod:`.test_sharded_model`."""

import pytest
import torch

from decodekit.neuron_backend.tensor_parallel.parallel_plan import Cut, OnFirst


class TestShares:
    """Single tensors."""

    @pytest.mark.parametrize("dim", [0, 1])
    @pytest.mark.parametrize(("size", "degree"), [(6, 2), (7, 2), (7, 3), (2, 3), (1, 4)])
    def test_cuts_put_together_are_whole(self, dim: int, size: int, degree: int) -> None:
        """Also if the size is not a multiple of the degree."""
        whole = torch.arange(1.0, 5 * size + 1).reshape(5, size).movedim(1, dim)
        cut = Cut(dim, size)
        pieces = [cut.local(whole, rank, degree) for rank in range(degree)]

        assert 1 == len({piece.shape for piece in pieces})
        assert torch.equal(whole, cut.whole(pieces))

    def test_packed_matrices_are_divided_each_by_itself(self) -> None:
        """Gate and up of a rank are stacked, as those of the whole."""
        whole = torch.arange(8.0)[:, None]
        pieces = [Cut(0, 8, packed=2).local(whole, rank, 2) for rank in (0, 1)]

        assert [[0, 1, 4, 5], [2, 3, 6, 7]] == [piece.flatten().tolist() for piece in pieces]
        assert torch.equal(whole, Cut(0, 8, packed=2).whole(pieces))

    def test_a_bias_is_added_once(self) -> None:
        """On rank 0."""
        bias = torch.arange(1.0, 4.0)
        pieces = [OnFirst().local(bias, rank, 3) for rank in range(3)]

        assert torch.equal(bias, torch.stack(pieces).sum(0))
        assert torch.equal(bias, OnFirst().whole(pieces))
