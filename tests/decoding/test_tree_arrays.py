"""Trees of tokens as arrays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from decodekit.decoding.tree_arrays import Bools, Ints, depths, first_branch, paths

# 0 - 1 - 4        and, in the other row, two tokens of which the first is the only child of none
#   \\ 2 - 3
# 5
IDS = np.array([[7, 7, 7, 7, 7, 7], [7, 7, -1, -1, -1, -1]])
PARENTS = np.array([[-1, 0, 0, 2, 1, -1], [-1, -1, 9, 9, -9, 5]])


@st.composite
def trees(draw: DrawFn) -> tuple[Ints, Ints]:
    """Ids and parents of a few rows, with nonsense under the padding."""
    rows, width = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    ids, parents = np.full((rows, width), -1), np.full((rows, width), 99)
    for row in range(rows):
        for column in range(draw(st.integers(0, width))):
            ids[row, column] = 3
            parents[row, column] = draw(st.integers(-1, column - 1))
    return ids, parents


def way(parents: Ints, row: int, column: int) -> list[int]:
    """By definition: a column and, before it, the way to its parent."""
    parent = int(parents[row, column])
    return [*(way(parents, row, parent) if parent >= 0 else []), column]


class TestByHand:
    def test_depths(self) -> None:
        """Roots have none; what parents say under padding does not count."""
        assert [[0, 1, 1, 2, 2, 0], [0] * 6] == depths(IDS, PARENTS).tolist()

    def test_paths(self) -> None:
        """Every column is on its own path."""
        path = paths(IDS, PARENTS)

        assert [0, 2, 3] == np.flatnonzero(path[0, 3]).tolist()
        assert [5] == np.flatnonzero(path[0, 5]).tolist()
        assert [1] == np.flatnonzero(path[1, 1]).tolist()

    def test_first_branch(self) -> None:
        """First children, not the longest way down, and not the next column."""
        branch = first_branch(IDS, PARENTS)

        assert [0, 1, 4] == np.flatnonzero(branch[0]).tolist()
        assert [0] == np.flatnonzero(branch[1]).tolist()
        assert not first_branch(np.full((1, 2), -1), np.array([[-1, 0]])).any()


@given(trees())
def test_agree_with_the_definition(tree: tuple[Ints, Ints]) -> None:
    """Column by column, for any tree and padding."""
    ids, parents = tree
    found: tuple[Ints, Bools, Bools] = depths(ids, parents), paths(ids, parents), first_branch(ids, parents)
    for row in range(len(ids)):
        branch, tip = [], -1
        real = np.flatnonzero(ids[row] >= 0).tolist()
        while children := [column for column in real if parents[row, column] == tip]:
            tip = children[0]
            branch.append(tip)

        assert branch == np.flatnonzero(found[2][row]).tolist()
        for column in real:
            assert way(parents, row, column) == np.flatnonzero(found[1][row, column]).tolist()
            assert len(way(parents, row, column)) - 1 == found[0][row, column]
