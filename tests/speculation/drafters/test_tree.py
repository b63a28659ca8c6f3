"""Shapes of draft trees."""

from typing import Any

import pytest

from decodekit.speculation import Tree


class TestTree:
    def test_children_of_every_node(self) -> None:
        """Two nodes, three children each."""
        assert (-1, -1, 0, 0, 0, 1, 1, 1) == Tree.of_children(2, 3).parents

    def test_children_of_the_top_node(self) -> None:
        """Three nodes, two children of the first, one of the first of these."""
        assert (-1, -1, -1, 0, 0, 3) == Tree.comb(3, 2, 1).parents

    def test_a_chain_is_both(self) -> None:
        """With one child each a comb is a chain."""
        assert (-1, 0, 1) == Tree.comb(1, 1, 1).parents == Tree.of_children(1, 1, 1).parents

    def test_levels_of_inner_nodes(self) -> None:
        """The root first; leaves need not be scored by the draft."""
        assert [[-1], [0, 1]] == Tree.of_children(2, 2).inner
        assert [[-1], [0], [2]] == Tree.comb(2, 2, 1).inner
        assert [3, 4] == Tree.comb(3, 2).children(0)

    @pytest.mark.parametrize("parents", [(), (0,), (-1, 1), (-2,), (-1, True), (-1, 0.0)])
    def test_a_parent_comes_before_its_child(self, parents: tuple[int, ...]) -> None:
        """Parents are -1 or an earlier node, and there is at least one node."""
        with pytest.raises(ValueError, match="'parents' must be -1 or the number of an earlier node each"):
            Tree(parents)

    @pytest.mark.parametrize("parents", [None, -1, 1.5])
    def test_there_are_several_of_them(self, parents: Any) -> None:
        """A single number is a likely mistake."""
        with pytest.raises(TypeError, match=f"'parents' must be whole numbers: got {parents}"):
            Tree(parents)

    @pytest.mark.parametrize("children", [(), (0,), (2, -1), (1.5,), (True,)])
    def test_children_are_counted(self, children: tuple[int, ...]) -> None:
        """Each level has at least one node."""
        with pytest.raises(ValueError, match="'children' must be whole numbers >= 1, at least one"):
            Tree.comb(*children)
