"""Shapes of draft trees."""

from typing import Any

import attrs

from ...decoding.validation import is_iterable, is_whole

LARGEST = 2**16
"""The most nodes of a tree."""

ROOT = -1
"""Parent of the first level: the row's last token."""


def _as_tuple(parents: Any) -> Any:
    return tuple(parents) if is_iterable(parents) else parents


@attrs.frozen
class Tree:
    """
    Shape of a draft tree, as the parent of each node.

    >>> Tree.of_children(2, 2).parents
    (-1, -1, 0, 0, 1, 1)
    >>> Tree.comb(2, 2).parents
    (-1, -1, 0, 0)
    """

    parents: tuple[int, ...] = attrs.field(converter=_as_tuple)
    """Parent of each node, smaller than the node's own number; -1 for the row's last token."""

    @parents.validator
    def _(self, attribute: object, value: Any) -> None:
        if not isinstance(value, tuple):
            raise TypeError(f"'parents' must be whole numbers: got {value!r}")
        wrong = [parent for i, parent in enumerate(value) if not is_whole(parent) or not ROOT <= parent < i]
        if wrong or not value:
            raise ValueError(
                f"'parents' must be -1 or the number of an earlier node each, at least one: got {value}"
            )

    @classmethod
    def of_children(cls, *children: int) -> "Tree":
        """
        Tree in which every node of a level has the same number of children.

        ``(3, 2)`` is three candidates for the next token, and two after each of them. Drafting it
        requires a draft decoder that scores trees, unless it is a comb.
        """
        return cls._grown(children, on_all=True)

    @classmethod
    def comb(cls, *children: int) -> "Tree":
        """
        Tree in which only the top node of each level has children.

        ``(3, 2)`` is three candidates for the next token, and two after the first of them. The
        siblings add no draft forwards: the draft scores the chain of top tokens as without a tree.
        """
        return cls._grown(children, on_all=False)

    @classmethod
    def _grown(cls, children: tuple[int, ...], on_all: bool) -> "Tree":
        if not children or not all(is_whole(n) and n >= 1 for n in children):
            raise ValueError(f"'children' must be whole numbers >= 1, at least one: got {children}")
        parents: list[int] = []
        level = [ROOT]
        for n in children:
            if len(parents) + n * len(level) > LARGEST:
                raise ValueError(f"'children' must make at most {LARGEST} nodes: got {children}")
            first = len(parents)
            parents += [parent for parent in level for _ in range(n)]
            level = list(range(first, len(parents) if on_all else first + 1))
        return cls(parents)

    @property
    def inner(self) -> list[list[int]]:
        """Nodes with children, level by level; the first level is the root."""
        depth = {ROOT: 0}
        for node, parent in enumerate(self.parents):
            depth[node] = depth[parent] + 1
        followed = sorted(set(self.parents))
        levels = max(depth[node] for node in followed) + 1
        return [[node for node in followed if depth[node] == level] for level in range(levels)]

    def children(self, parent: int) -> list[int]:
        """Children of *parent*, by descending rank."""
        return [node for node, other in enumerate(self.parents) if other == parent]
