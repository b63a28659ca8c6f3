"""A minimum number of new tokens before a condition may end a row."""

import attrs
import torch
from torch import Tensor

from ..history import History
from ..protocols import Finish, StopCondition
from ..scores import Scores
from ..validation import counts
from .composition import Stop, a_condition, begin, codes_of
from .row_limits import limits, require_rows


@attrs.frozen(eq=False)
class NotBefore(Stop):
    """
    Ignore *condition* before a row's *n*-th new token.

    The finishes are those of *condition*. Earlier matches remain in the text, end-of-sequence tokens
    too: :class:`~decodekit.processors.MinNewTokens` forbids that token instead.
    """

    n: Tensor = attrs.field(converter=counts)
    """One number for all rows, or one for each; at least 1, a no-op."""

    condition: StopCondition = attrs.field(converter=a_condition)

    @property
    def conditions(self) -> tuple[StopCondition]:
        """The wrapped condition."""
        return (self.condition,)

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """The finishes of the condition."""
        return self.condition.finishes

    def check_rows(self, rows: int) -> None:
        """Raise ``ValueError`` if there is neither one number nor one for each of *rows* rows."""
        require_rows(self.n, rows)

    def begin(self) -> "NotBefore":
        """The condition for one run."""
        return NotBefore(self.n, begin(self.condition))

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        late = history.num_generated() >= torch.from_numpy(limits(self.n, history))
        return torch.where(late, codes_of(self.condition, scores, history), 0)
