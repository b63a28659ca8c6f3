"""The largest of numbers that may be NaN."""

import math

import pytest
import torch

from decodekit.neuron_backend.parity.magnitude import magnitude


@pytest.mark.parametrize("order", [1, -1])
def test_a_nan_is_not_dropped(order: int) -> None:
    """Wherever it stands."""
    assert math.isnan(magnitude(*[torch.ones(2), torch.tensor([1.0, math.nan])][::order]))


def test_is_the_largest_absolute_value() -> None:
    """Of all tensors, of any shape."""
    assert 7.0 == magnitude(torch.tensor([[3.0, -7.0]]), torch.tensor([5.0]))
