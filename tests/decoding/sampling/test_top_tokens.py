"""The largest logits, of equals the lowest ids."""

import math

import torch
from hypothesis import given, strategies as st

from decodekit.decoding.sampling.top_tokens import top_tokens

ROW = st.lists(st.sampled_from((-math.inf, math.nan, -1.5, 0.0, -0.0, 2.0, math.inf)), min_size=7, max_size=7)


class TestTopTokens:
    @given(st.lists(ROW, min_size=1, max_size=4), st.integers(1, 7))
    def test_by_definition(self, rows: list[list[float]], n: int) -> None:
        """A stable sort of every row, in which NaN is as good as forbidden."""

        def least(x: float) -> float:
            return -math.inf if math.isnan(x) else x

        expected = [sorted(range(7), key=lambda i: (-least(row[i]), i))[:n] for row in rows]

        assert expected == top_tokens(torch.tensor(rows), n).tolist()
        assert [expected] == top_tokens(torch.tensor([rows]), n).tolist()

    def test_does_not_write(self) -> None:
        """The logits are the caller's."""
        logits = torch.tensor([[3.0, math.nan, 5.0]])
        top_tokens(logits, 2)

        assert [3.0, 5.0] == logits[0, [0, 2]].tolist()
        assert logits[0, 1].isnan()
