"""Suppressed tokens."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..parameter import as_token_ids, index_of


@attrs.frozen(eq=False)
class SuppressTokens(Composable):
    """
    Forbid *ids* at every position.

    No-op when empty. A hard constraint: it can leave a row without a token.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    ids: tuple[int, ...] = attrs.field(converter=as_token_ids)
    """The forbidden tokens, ascending."""

    _index: Tensor = attrs.field(init=False, repr=False)

    @_index.default
    def _make_index(self) -> Tensor:
        return torch.tensor(self.ids, dtype=torch.int64)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask *ids* in ``[batch, width, vocab]`` logits, which are not modified."""
        if not self.ids:
            return logits
        return logits.scatter(-1, index_of(self.ids, logits, self._index), -torch.inf)
