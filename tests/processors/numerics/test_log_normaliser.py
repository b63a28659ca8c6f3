"""Difference between logits and log-probabilities."""

import math

import torch

from decodekit.processors.numerics.log_normaliser import log_normaliser


class TestLogNormaliser:
    def test_is_the_logarithm_of_the_sum(self) -> None:
        """4 and 3 and 1 make 8."""
        logits = torch.tensor([4.0, 3.0, 1.0, 0.0]).log()

        torch.testing.assert_close(log_normaliser(logits), torch.tensor([math.log(8)]))

    def test_is_0_where_no_token_is_left(self) -> None:
        """No number would make the row add up to 1."""
        assert [0.0] == log_normaliser(torch.full((3,), -torch.inf)).tolist()

    def test_of_a_row_does_not_depend_on_its_neighbours(self) -> None:
        """Nor on the threads that share a batch, at a vocabulary of many."""
        logits = torch.randn(3, 100_000, generator=torch.Generator().manual_seed(0))

        assert torch.equal(log_normaliser(logits)[:1], log_normaliser(logits[:1]))
