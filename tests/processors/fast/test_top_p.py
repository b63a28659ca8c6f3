"""Short cuts of top-p."""

import numpy as np
import pytest
import torch

from decodekit.decoding.sampling.few_tokens import Cell, Few
from decodekit.processors import TopP
from decodekit.processors.fast.top_p import FastTopP
from decodekit.processors.numerics.exact_sum import whole_weights

from ..by_hand import NOTHING


@pytest.mark.parametrize("beside", [0.0, 1e-15, -1e-15, 1e-8, -1e-8, 1e-6, -1e-6, 1e-4, -1e-4])
def test_of_few_is_a_call_where_the_sum_ends_at_the_edge(beside: float) -> None:
    """Where one minus p is what the smallest weigh, to the last bit or nearly; at each of 59 edges."""
    logits = 4 * torch.randn(1, 1, 60, generator=torch.Generator().manual_seed(5))
    weights = whole_weights(logits.flatten().sort().values)
    shares = (weights.cumsum(0) / weights.sum())[:-1].tolist()
    cell = Cell(np.zeros(1, dtype=np.int64), 1, 0, 60)
    for share in shares:
        top_p = TopP(min(1.0, max(1e-12, 1 - share + beside)))
        left = FastTopP(top_p).of_few(Few(np.arange(60), logits.flatten().numpy()), cell)
        assert left is not None
        ids, scores = left.arrays()
        expected = top_p(logits, NOTHING).flatten()

        assert torch.isfinite(expected).nonzero().flatten().tolist() == ids.tolist()
        assert expected[ids].tolist() == scores.tolist()
