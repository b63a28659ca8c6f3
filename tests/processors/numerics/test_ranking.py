"""K-th largest logits."""

import pytest
import torch

from decodekit.processors.numerics.ranking import kth_largest


@pytest.mark.parametrize(("k", "expected"), [(1, 9.0), (2, 7.0), (3, 7.0), (4, -1.0), (99, -1.0)])
def test_kth_largest_counts_equals_apart(k: int, expected: float) -> None:
    """Beyond the last, the smallest counts."""
    assert [[expected]] == kth_largest(torch.tensor([[7.0, 9.0, -1.0, 7.0]]), k).tolist()
