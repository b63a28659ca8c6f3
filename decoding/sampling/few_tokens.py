"""The few tokens of one column that remain after a top-k, as numpy arrays."""

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]


@attrs.define(eq=False)
class Cell:
    """One column of one row. Treat as immutable (not frozen, for speed)."""

    tokens: Ints
    """The ids before it, ``[length]``: a read-only view."""

    prompt: int
    """The number of prompt tokens among them."""

    random_stream: int
    """The row's random stream."""

    vocab: int
    """Size of the vocabulary."""


@attrs.define(eq=False)
class Few:
    """
    Some tokens of one column and their logits; all others are at ``-inf``.

    They are sorted once for all stages that need their order. Tokens that stages drop are removed from
    the arrays on the next access, once for all of these stages.
    """

    _ids: Ints
    _scores: Floats
    _ascending: Floats | None = None

    _floor: float | None = None
    """Tokens below it have been dropped, though the arrays may still contain them."""

    def arrays(self) -> tuple[Ints, Floats]:
        """The ids ``[n]``, ascending, and their logits ``[n]`` float32; both read-only."""
        if self._floor is not None:
            kept = (self._scores >= self._floor).nonzero()[0]
            self._ids, self._scores, self._floor = self._ids.take(kept), self._scores.take(kept), None
        return self._ids, self._scores

    def ascending(self) -> Floats:
        """The logits in ascending order ``[n]``; read-only."""
        if self._ascending is None:
            _, scores = self.arrays()
            self._ascending = scores.copy()
            self._ascending.sort()
        return self._ascending

    def largest(self) -> float:
        """The largest logit; NaN if any logit is NaN."""
        found: float = self.ascending().item(-1)
        return found

    def without_smallest(self, n: int) -> "Few":
        """All but the *n* smallest (fewer than all); tokens that tie with a remaining one remain."""
        ascending = self.ascending()
        floor = ascending.item(n)
        while n and ascending.item(n - 1) == floor:
            n -= 1
        return Few(self._ids, self._scores, ascending[n:], floor) if n else self
