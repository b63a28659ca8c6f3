"""A few tokens of one column, as arrays of numpy's: what there is to choose from after a top-k."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]


@attrs.define(eq=False)
class Cell:
    """One column of one row. Not to be changed; that is not looked after, for it takes time."""

    tokens: Ints
    """The ids before it, ``[length]``: a view, not to be written to."""

    prompt: int
    """How many of them are prompt."""

    random_stream: int
    """The row's random stream."""

    vocab: int
    """How many tokens there are in all."""


@attrs.define(eq=False)
class Few:
    """
    Some tokens of one column and their logits; all others are at ``-inf``.

    They are sorted once for all stages that want to know their order. Those that a stage leaves out
    are taken out of the arrays when somebody asks for these, once for all stages that leave some out.
    """

    _ids: Ints
    _scores: Floats
    _ascending: Floats | None = None

    _floor: float | None = None
    """What is below it has been left out, though the arrays may still have it."""

    def arrays(self) -> tuple[Ints, Floats]:
        """The ids ``[n]``, ascending, and their logits ``[n]`` float32; neither is to be written to."""
        if self._floor is not None:
            kept = (self._scores >= self._floor).nonzero()[0]
            self._ids, self._scores, self._floor = self._ids.take(kept), self._scores.take(kept), None
        return self._ids, self._scores

    def ascending(self) -> Floats:
        """The logits in their order ``[n]``; not to be written to."""
        if self._ascending is None:
            _, scores = self.arrays()
            self._ascending = scores.copy()
            self._ascending.sort()
        return self._ascending

    def largest(self) -> float:
        """The largest logit; NaN if there is one."""
        found: float = self.ascending().item(-1)
        return found

    def without_smallest(self, n: int) -> "Few":
        """All but the *n* smallest, fewer than there are; those that tie with one that stays do so too."""
        ascending = self.ascending()
        floor = ascending.item(n)
        while n and ascending.item(n - 1) == floor:
            n -= 1
        return Few(self._ids, self._scores, ascending[n:], floor) if n else self


@runtime_checkable
class OfFew(Protocol):
    """What a processor may offer to run on a few tokens."""

    takes_few: bool
    """Whether it does so with its parameters."""

    def of_few(self, few: Few, cell: Cell) -> Few | None:
        """What a call makes of these tokens, bit for bit; None where that takes a call."""


@runtime_checkable
class Pointwise(OfFew, Protocol):
    """
    What a processor may offer to run before a top-k, on the few tokens that may come through it.

    What becomes of a token depends on its own logit and the history alone, and no token that had less
    than another's logit ends above what :meth:`at_most` says of that.
    """

    def at_most(self, logit: np.float32) -> np.float32:
        """No token whose logit is at most *logit* has more than this afterwards."""


@runtime_checkable
class Narrows(OfFew, Protocol):
    """What a processor may offer to find the tokens that come through it, and through those before it."""

    def to_few(self, logits: Floats, before: Sequence[Pointwise], cell: Cell) -> Few | None:
        """What calls of those *before* and then this make of ``[vocab]``; None where that takes calls."""


DrawFromFew: TypeAlias = Callable[[Few, Cell], int | None]
"""Chooses from what is left of one column what a call on all of the vocabulary does; None for a call."""


@runtime_checkable
class DrawsFromFew(Protocol):
    """What a sampler may offer."""

    def from_few(self) -> DrawFromFew:
        """What draws in one run: it may remember something from step to step."""
