"""A condition that must hold for several consecutive tokens."""

import attrs
import numpy as np
import torch
from attrs import validators
from numpy.typing import NDArray
from torch import Tensor

from ..history import History
from ..protocols import Finish, StopCondition
from ..scores import Scores
from ..validation import LARGEST, a_whole_number
from .composition import Stop, a_condition, begin, codes_of

_Ints = NDArray[np.int64]


@attrs.define(eq=False)
class _Row:
    """The codes of one row's tokens, valid as long as the tokens are the same."""

    ids: _Ints
    codes: _Ints
    known: int = 0
    """The number of tokens with codes, including the prompt."""

    def take(self, ids: _Ints, code: int) -> None:
        """
        Record the code of the last of *ids*, unless it is known.

        When a token is shown again, its scores may not be its own any more, so the first code counts.
        """
        length, common = len(ids), self._common_prefix_length(ids)
        if common == length:
            return
        self.ids[common:length] = ids[common:]
        self.codes[common:length] = 0
        self.codes[length - 1] = code
        self.known = length

    def _common_prefix_length(self, ids: _Ints) -> int:
        both = min(self.known, len(ids))
        differing = np.flatnonzero(self.ids[:both] != ids[:both])
        return int(differing[0]) if len(differing) else both


@attrs.frozen(eq=False)
class Consecutive(Stop):
    """
    End a row where *condition* holds at each of its last *n* tokens.

    For a run of uncertain tokens: ``Consecutive(4, HighEntropy(2.5))``. The prompt does not count.
    Codes of past scores cannot be computed again, so they are recorded by row and tokens and dropped
    when the tokens are replaced. Therefore it must be called with a row's tokens in order, one path
    at a time, as a generator does.
    """

    n: int = attrs.field(validator=[a_whole_number, validators.ge(1), validators.le(LARGEST)])
    """Number of tokens; no-op at 1."""

    condition: StopCondition = attrs.field(converter=a_condition)
    """Its finish at the newest token is the finish of the row."""

    _rows: dict[int, _Row] = attrs.field(factory=dict, init=False, repr=False)

    @property
    def conditions(self) -> tuple[StopCondition]:
        """The condition that must hold."""
        return (self.condition,)

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """The finishes of the condition."""
        return self.condition.finishes

    def begin(self) -> "Consecutive":
        """A fresh copy, with its condition for one run."""
        return Consecutive(self.n, begin(self.condition))

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        codes, count = codes_of(self.condition, scores, history), history.num_generated()
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
