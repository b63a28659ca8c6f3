"""Shapes of trees of guesses."""

from collections.abc import Iterable
from typing import Any

import attrs

from ...decoding.validation import is_whole

ROOT = -1
"""The row's last token, which every tree follows."""


def _as_tuple(parents: Any) -> Any:
    return tuple(parents) if isinstance(parents, Iterable) else parents


@attrs.frozen
class Tree:
    """
    Which guess follows which.

    >>> Tree.of_children(2, 2).parents
    (-1, -1, 0, 0, 1, 1)
    >>> Tree.comb(2, 2).parents
    (-1, -1, 0, 0)
    """

    parents: tuple[int, ...] = attrs.field(converter=_as_tuple)
    """Of each guess the number of the one that it follows, smaller than its own; -1 for the last token."""

    @parents.validator
    def _(self, attribute: object, value: Any) -> None:
        if not isinstance(value, tuple):
            raise TypeError(f"'parents' must be whole numbers: got {value!r}")
        wrong = [parent for i, parent in enumerate(value) if not is_whole(parent) or not ROOT <= parent < i]
        if wrong or not value:
            raise ValueError(
                f"'parents' must be -1 or the number of an earlier guess each, at least one: got {value}"
            )

    @classmethod
    def of_children(cls, *children: int) -> "Tree":
        """
        Every guess of a level has as many children as *children* says.

        ``(3, 2)`` is three guesses at the next token, and two after each of them. Drafting it
        takes a draft decoder that scores trees, unless it is a comb.
        """
        return cls._grown(children, on_all=True)

    @classmethod
    def comb(cls, *children: int) -> "Tree":
        """
        The likeliest guess of a level alone has children, as many as *children* says.

        ``(3, 2)`` is three guesses at the next token, and two after the first of them. Its
        siblings cost the draft nothing: it scores the chain of likeliest guesses as ever.
        """
        return cls._grown(children, on_all=False)

    @classmethod
    def _grown(cls, children: tuple[int, ...], on_all: bool) -> "Tree":
        if not children or not all(is_whole(n) and n >= 1 for n in children):
            raise ValueError(f"'children' must be whole numbers >= 1, at least one: got {children}")
        parents: list[int] = []
        level = [ROOT]
        for n in children:
            first = len(parents)
            parents += [parent for parent in level for _ in range(n)]
            level = list(range(first, len(parents) if on_all else first + 1))
        return cls(parents)

    @property
    def inner(self) -> list[list[int]]:
        """The guesses that others follow, level by level; the first level is the root alone."""
        depth = {ROOT: 0}
        for guess, parent in enumerate(self.parents):
            depth[guess] = depth[parent] + 1
        followed = sorted(set(self.parents))
        levels = max(depth[guess] for guess in followed) + 1
        return [[guess for guess in followed if depth[guess] == level] for level in range(levels)]

    def children(self, parent: int) -> list[int]:
        """The guesses that follow *parent*, the likeliest first."""
        return [guess for guess, other in enumerate(self.parents) if other == parent]
