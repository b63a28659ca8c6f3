"""Minimum length, prompt included."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..parameter import as_integers, as_token_ids, index_of, integer, is_scalar, per_row
from .masking import forbid_where


@attrs.frozen(eq=False)
class MinLength(Composable):
    """
    Forbid the end of sequence while prompt and generated tokens are fewer than *n*.

    No-op at 0. A hard constraint: it can leave a row without a token. Hugging Face also counts the
    padding of a batch; here rows have none.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    n: int | Tensor = attrs.field(
        converter=as_integers, validator=integer(">= 0 (0 is off)", lambda n: n >= 0)
    )
    """In tokens. One for all rows, or ``[batch]``."""

    eos: tuple[int, ...] = attrs.field(converter=as_token_ids)
    """End-of-sequence token ids, ascending. May be given as a single id."""

    _index: Tensor = attrs.field(init=False, repr=False)

    @_index.default
    def _make_index(self) -> Tensor:
        return torch.tensor(self.eos, dtype=torch.int64)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask the end of sequence in ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.n, 0) or not self.eos:
            return logits
        index = index_of(self.eos, logits, self._index)
        too_short = history.length[..., None] < per_row("n", self.n, logits)
        return forbid_where(too_short, logits, index)
