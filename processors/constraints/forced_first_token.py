"""Forced first generated token."""

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
    Allow only *tokens* as the first generated token.

    Hugging Face instead forces the token after a decoder input of one token, whatever the prompt,
    and sets its logit to 0; here the logit is kept. A hard constraint: it leaves a row without a
    token if all of *tokens* were forbidden before. No neutral value.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    tokens: tuple[int, ...] = attrs.field(converter=as_token_ids, validator=at_least_one)
    """Allowed first tokens. May be given as a single id."""

    _index: Tensor = attrs.field(init=False, repr=False)

    @_index.default
    def _make_index(self) -> Tensor:
        return torch.tensor(self.tokens, dtype=torch.int64)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask all other first tokens in ``[batch, width, vocab]`` logits, which are not modified."""
        forced = keep_only(logits, index_of(self.tokens, logits, self._index))
        first = history.length == history.prompt[:, None]  # [batch, width]
        return torch.where(first[..., None], forced, logits)
