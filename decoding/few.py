"""A few tokens of one column, as arrays of numpy's: what there is to choose from after a top-k."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

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

    stream: int
    """The row's random stream."""

    vocab: int
    """How many tokens there are in all."""


Few: TypeAlias = tuple[Ints, Floats]
"""Ids ``[n]``, ascending, and their logits ``[n]`` float32. All others are at ``-inf``."""


class Pointwise(Protocol):
    """
    What a processor may offer to run before a top-k, on the few tokens that may come through it.

    What becomes of a token depends on its own logit and the history alone, and no token that had less
    than another's logit ends above what :meth:`at_most` says of that.
    """

    def of_few(self, few: Few, cell: Cell) -> Few | None:
        """What a call makes of these tokens, bit for bit; None where that takes a call."""
        ...

    def at_most(self, logit: np.float32) -> np.float32:
        """No token whose logit is at most *logit* has more than this afterwards."""
        ...


class Narrows(Protocol):
    """What a processor may offer to find the tokens that come through it, and through those before it."""

    def to_few(self, logits: Floats, before: Sequence[Pointwise], cell: Cell) -> Few | None:
        """What calls of those *before* and then this make of ``[vocab]``; None where that takes calls."""
        ...


class DrawsFromFew(Protocol):
    """What a selection may offer."""

    def from_few(self, few: Few, cell: Cell) -> int | None:
        """What a call on all of the vocabulary chooses; None where that takes a call."""
        ...
