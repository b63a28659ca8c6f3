"""Letting a condition wait."""

import attrs
import torch
from torch import Tensor

from ..history import History
from ..protocols import Finish, StopCondition
from ..scores import Scores
from ..validation import counts
from .composition import Stop, a_condition, begin
from .row_limits import limits


@attrs.frozen(eq=False)
class NotBefore(Stop):
    """
    Let *condition* end a row from its *n*-th new token on, and not before.

    No row has fewer than *n* new tokens by it, the last one included; the finishes are those of
    *condition*. What it meets before that is text like any other, a token that ends sequences
    too: :class:`~decodekit.processors.MinNewTokens` forbids that token instead.
    """

    n: Tensor = attrs.field(converter=counts)
    """One number for all rows, or one for each; at least 1, which changes nothing."""

    condition: StopCondition = attrs.field(converter=a_condition)

    @property
    def conditions(self) -> tuple[StopCondition]:
        """The one that waits."""
        return (self.condition,)

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """The finishes of the condition."""
        return self.condition.finishes

    def begin(self) -> "NotBefore":
        """The condition made ready."""
        return NotBefore(self.n, begin(self.condition))

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        late = history.num_generated() >= torch.from_numpy(limits(self.n, history))
        return torch.where(late, self.condition(scores, history), 0)
