"""Where the children of beams are placed."""

import numpy as np
from hypothesis import given, strategies as st

from decodekit.decoding.strategies.beams.columns import columns_of_children

IDS = np.array([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6, 6], [1, 7, 7, 7]])


def test_the_first_child_stays() -> None:
    """Whatever the order; a beam without children leaves its column idle."""
    assert [2, 0, 1] == columns_of_children([2, 0, 1], IDS)


def test_others_go_where_most_is_in_common() -> None:
    """Beam 0 has three children: after its own, column 1 shares three tokens with it and column 2 two."""
    assert [0, 1, 2, 3] == columns_of_children([0, 0, 0, 3], IDS)
    assert [3, 0, 2, 1] == columns_of_children([3, 0, 2, 0], IDS)
    assert [2, 0, 1, 3] == columns_of_children([2, 2, 2, 2], IDS)


def test_nothing_is_placed_where_nothing_goes_on() -> None:
    """No children, no columns."""
    assert [] == columns_of_children([], IDS)


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.integers(0, n - 1), max_size=n).map(lambda p: (n, p))))
def test_all_are_different(case: tuple[int, list[int]]) -> None:
    """And every parent's column is its first child's."""
    beams, parents = case
    ids = np.random.default_rng(0).integers(0, 3, (beams, 5))
    columns = columns_of_children(parents, ids)

    assert len(parents) == len(set(columns)) == len(columns)
    assert set(columns) <= set(range(beams))
    assert all(columns[parents.index(parent)] == parent for parent in parents)
