"""Length of the common prefix."""

from itertools import takewhile

import numpy as np
from hypothesis import given, strategies as st

from decodekit.decoding.common_prefix_length import common_prefix_length

IDS = st.lists(st.integers(0, 1), max_size=6)


@given(IDS, IDS)
def test_of_any_two(one: list[int], other: list[int]) -> None:
    """Of different lengths too, and of none."""
    expected = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))

    assert expected == common_prefix_length(np.array(one, np.int64), np.array(other, np.int64))
