"""A limit on the length, prompt included."""

import attrs
import numpy as np
import torch
from torch import Tensor

from ..history import History
from ..optional_protocols import RowLimit, TokenCode, has_short_cuts
from ..protocols import Finish
from ..scores import Scores
from ..validation import counts
from .composition import Stop
from .row_limits import limit_of_row, limits, require_rows


@has_short_cuts
@attrs.frozen(eq=False)
class MaxLength(Stop):
    """
    End a row when it has *n* tokens, including the prompt.

    At least one token is sampled, however long the prompt.
    """

    n: Tensor = attrs.field(converter=counts)
    """One number for all rows, or one for each; at least 1."""

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One."""
        return (Finish("max_length"),)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        return torch.from_numpy((history.length.numpy() >= limits(self.n, history)).astype(np.int64))

    def check_rows(self, rows: int) -> None:
        """Raise ``ValueError`` if there is neither one number nor one for each of *rows* rows."""
        require_rows(self.n, rows)

    def most_new_tokens(self) -> RowLimit:
        """Those up to *n*, and one at least."""
        limit = limit_of_row(self.n)
        return lambda prompt, row: max(1, limit(row) - prompt)

    def by_token(self) -> TokenCode:
        """The code of one token."""
        limit = limit_of_row(self.n)
        return lambda token, length, prompt, row: int(length >= limit(row))
