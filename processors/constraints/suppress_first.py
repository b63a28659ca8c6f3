"""Suppressed tokens at the start of generation."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..parameter import as_integers, as_token_ids, index_of, integer, is_scalar, per_row
from .masking import forbid_where


@attrs.frozen(eq=False)
class SuppressFirst(Composable):
    """
    Forbid *ids* among the first *n* generated tokens.

    The prompt does not count. No-op when *ids* is empty or *n* is 0. A hard constraint: it can
    leave a row without a token. In Hugging Face *n* is 1 and counts after a forced
    first token.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    ids: tuple[int, ...] = attrs.field(converter=as_token_ids)
    """The forbidden tokens, ascending."""

    n: int | Tensor = attrs.field(
        default=1, converter=as_integers, validator=integer(">= 0 (0 is off)", lambda n: n >= 0)
    )
    """Number of tokens. One for all rows, or ``[batch]``."""

    _index: Tensor = attrs.field(init=False, repr=False)

    @_index.default
    def _make_index(self) -> Tensor:
        return torch.tensor(self.ids, dtype=torch.int64)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask *ids* in ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.n, 0) or not self.ids:
            return logits
        index = index_of(self.ids, logits, self._index)
        first = history.num_generated()[..., None] < per_row("n", self.n, logits)
        return forbid_where(first, logits, index)
