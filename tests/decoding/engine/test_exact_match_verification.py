"""Verification by agreement."""

import torch
from hypothesis import given, strategies as st

from decodekit.decoding import Draft, ExactMatch, History

NOWHERE = History(torch.zeros(1, 1, 1), torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))


class TestAgreement:
    @given(st.lists(st.integers(-1, 2), max_size=5), st.data())
    def test_keeps_the_longest_common_prefix(self, drafted: list[int], data: st.DataObject) -> None:
        """Counted one by one; a missing draft token matches nothing, not even a missing choice."""
        k = len(drafted)
        choices = data.draw(st.lists(st.integers(-1, 2), min_size=k + 1, max_size=k + 1))
        expected = 0
        while expected < k and drafted[expected] == choices[expected] >= 0:
            expected += 1
        accepted, following = ExactMatch()(
            Draft(torch.tensor([drafted], dtype=torch.int64)),
            torch.tensor([choices]),
            torch.empty(0),
            NOWHERE,
        )

        assert (expected, choices[expected]) == (int(accepted), int(following))
