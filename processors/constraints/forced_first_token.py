"""Prescribing the beginning."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..parameter import as_token_ids, at_least_one, index_of
from .masking import keep_only


@attrs.frozen(eq=False)
class ForcedFirstToken(Composable):
    """
    Forbid all tokens but one, or some, for the first that is generated.

    Hugging Face forces the first token of a decoder's input, which with a prompt is the
    prompt's, and sets its logit to 0; here it keeps its own. A hard constraint: it leaves a row
    without a token when that token was forbidden before.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    tokens: tuple[int, ...] = attrs.field(converter=as_token_ids, validator=at_least_one)
    """One of these comes first. One id may be given alone."""

    _index: Tensor = attrs.field(init=False, repr=False)

    @_index.default
    def _make_index(self) -> Tensor:
        return torch.tensor(self.tokens, dtype=torch.int64)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask all others in the first of ``[batch, width, vocab]`` logits, which are not modified."""
        forced = keep_only(logits, index_of(self.tokens, logits, self._index))
        first = history.length == history.prompt[:, None]  # [batch, width]
        return torch.where(first[..., None], forced, logits)
