"""Detection of repetition loops."""

from typing import Any

import attrs
import torch
from attrs import validators
from torch import Tensor

from ..history import History
from ..protocols import Finish
from ..scores import Scores
from ..validation import a_whole_number
from .composition import Stop
from .newest_token import newest

LONGEST = 2**20
"""The longest pattern that is looked for."""


@attrs.frozen(eq=False)
class RepetitionLoop(Stop):
    """
    End a row whose newest tokens are a pattern repeated *repeats* times.

    The prompt does not count. Greedy text rarely leaves such a loop; tables and poems may. The cost is
    independent of the length of the text.
    """

    max_period: int = attrs.field(validator=[a_whole_number, validators.ge(1), validators.le(LONGEST)])
    """Tokens of the longest pattern, at most :data:`LONGEST`."""

    repeats: int = attrs.field(
        default=3, validator=[a_whole_number, validators.ge(2), validators.le(LONGEST)]
    )
    """Occurrences of the pattern, from 2 to :data:`LONGEST`."""

    min_period: int = attrs.field(default=1, validator=[a_whole_number, validators.ge(1)])
    """Tokens of the shortest pattern. A single repeated token also counts as a longer pattern of it."""

    _periods: Tensor = attrs.field(init=False, repr=False)

    @min_period.validator
    def _is_not_above_the_longest(self, attribute: "attrs.Attribute[Any]", value: int) -> None:
        if value > self.max_period:
            raise ValueError(f"'min_period' must be <= max_period, {self.max_period}: got {value}")

    @_periods.default
    def _all_periods(self) -> Tensor:
        # attrs validates after the defaults, which need valid fields.
        attrs.validate(self)
        return torch.arange(self.min_period, self.max_period + 1)

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One."""
        return (Finish("repetition_loop"),)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        codes = torch.zeros_like(history.length)
        for row, column, period in self._candidates(history).nonzero().tolist():
            if not codes[row, column]:
                period += self.min_period
                end = history.before(row, column)[-period * self.repeats :]
                codes[row, column] = torch.equal(end[period:], end[:-period])
        return codes

    def _candidates(self, history: History) -> Tensor:
        """The periods that the newest token and the number of tokens allow, ``[batch, width, periods]``."""
        earlier = (history.length[..., None] - 1 - self._periods).clamp(min=0)
        ids = history.ids.expand(-1, earlier.shape[1], -1).gather(-1, earlier)
        enough = history.num_generated()[..., None] >= self._periods * self.repeats
        return (ids == newest(history)[..., None]) & enough
