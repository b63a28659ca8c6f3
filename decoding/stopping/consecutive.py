"""Asking for a stretch of tokens, not for one."""

import attrs
import numpy as np
import torch
from attrs import validators
from numpy.typing import NDArray
from torch import Tensor

from ..history import History
from ..protocols import Finish, StopCondition
from ..scores import Scores
from ..validation import a_whole_number
from .composition import Stop, a_condition, begin

_Ints = NDArray[np.int64]


@attrs.define(eq=False)
class _Row:
    """What was said of each token of one row, as long as the tokens are those."""

    ids: _Ints
    codes: _Ints
    known: int = 0
    """Of how many tokens, the prompt's among them."""

    def take(self, ids: _Ints, code: int) -> None:
        """
        Note the code of the last of *ids*, unless it is known.

        The scores of a token that is shown again may be no longer its own: the first counts.
        """
        length, agreed = len(ids), self._agreement(ids)
        if agreed == length:
            return
        self.ids[agreed:length] = ids[agreed:]
        self.codes[agreed:length] = 0
        self.codes[length - 1] = code
        self.known = length

    def _agreement(self, ids: _Ints) -> int:
        both = min(self.known, len(ids))
        differing = np.flatnonzero(self.ids[:both] != ids[:both])
        return int(differing[0]) if len(differing) else both


@attrs.frozen(eq=False)
class Consecutive(Stop):
    """
    End a row where *condition* has held at each of its last *n* tokens.

    For a stretch of uncertain tokens: ``Consecutive(4, HighEntropy(2.5))``. The prompt's tokens do
    not count. What a condition says of past scores cannot be asked again, so it is noted, by row
    and tokens: tokens that are replaced take their notes with them. So it has to be shown a row's
    tokens in order, one path at a time, as a generator does.
    """

    n: int = attrs.field(validator=[a_whole_number, validators.ge(1)])
    """In tokens; 1 changes nothing."""

    condition: StopCondition = attrs.field(converter=a_condition)
    """The ending is the one that it gives for the newest token."""

    _rows: dict[int, _Row] = attrs.field(factory=dict, init=False, repr=False)

    @property
    def conditions(self) -> tuple[StopCondition]:
        """The one that has to hold."""
        return (self.condition,)

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """The finishes of the condition."""
        return self.condition.finishes

    def begin(self) -> "Consecutive":
        """A copy that has seen nothing yet, its condition made ready."""
        return Consecutive(self.n, begin(self.condition))

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        codes, count = self.condition(scores, history), history.num_generated()
        result = torch.zeros_like(codes)
        for row, column in np.ndindex(*codes.shape):
            seen, ids = self._row(row, history), history.before(row, column).numpy()
            seen.take(ids, int(codes[row, column]))
            if count[row, column] >= self.n and seen.codes[len(ids) - self.n : len(ids)].all():
                result[row, column] = int(seen.codes[len(ids) - 1])
        return result

    def _row(self, row: int, history: History) -> _Row:
        room = history.ids.shape[-1]
        if row not in self._rows or len(self._rows[row].ids) != room:
            self._rows[row] = _Row(np.zeros(room, dtype=np.int64), np.zeros(room, dtype=np.int64))
        return self._rows[row]
