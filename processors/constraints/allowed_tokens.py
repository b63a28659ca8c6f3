"""Allow-list of tokens."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..parameter import as_token_ids, at_least_one, index_of
from .masking import keep_only


@attrs.frozen(eq=False)
class AllowedTokens(Composable):
    """
    Forbid all tokens except *ids*, at every position.

    If the end of sequence is not among *ids*, only a limit ends a row. A hard constraint: it leaves
    a row without a token if all of *ids* were forbidden before. No neutral value.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    ids: tuple[int, ...] = attrs.field(converter=as_token_ids, validator=at_least_one)
    """The allowed tokens, ascending."""

    _index: Tensor = attrs.field(init=False, repr=False)

    @_index.default
    def _make_index(self) -> Tensor:
        return torch.tensor(self.ids, dtype=torch.int64)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask all other tokens of ``[batch, width, vocab]`` logits, which are not modified."""
        return keep_only(logits, index_of(self.ids, logits, self._index))
