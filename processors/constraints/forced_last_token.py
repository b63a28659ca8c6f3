"""Forced last token before a length limit."""

from typing import ClassVar

import attrs
import torch
from attrs import validators
from torch import Tensor

from ...decoding.history import History
from ...decoding.validation import as_real, one_real
from ..chain import Composable
from ..parameter import FLOAT32, as_integers, as_token_ids, at_least_one, index_of, integer, per_row
from .masking import keep_only

_LIMIT = validators.optional(integer(">= 1", lambda limit: limit >= 1))


@attrs.frozen(eq=False)
class ForcedLastToken(Composable):
    """
    Allow only *tokens* as the last token before a length limit.

    The limit is *max_new_tokens*, or *max_length* including the prompt; set it to the limit of the
    generation. A hard constraint: it leaves a row without a token if all of *tokens* were forbidden
    before, unless *logit* is given. No neutral value.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    tokens: tuple[int, ...] = attrs.field(converter=as_token_ids, validator=at_least_one)
    """Allowed last tokens. May be given as a single id."""

    max_new_tokens: int | Tensor | None = attrs.field(
        default=None, kw_only=True, converter=attrs.converters.optional(as_integers), validator=_LIMIT
    )
    """Limit in generated tokens. One for all rows, or ``[batch]``. Exclusive with *max_length*."""

    max_length: int | Tensor | None = attrs.field(
        default=None, kw_only=True, converter=attrs.converters.optional(as_integers), validator=_LIMIT
    )
    """Limit in tokens including the prompt. One for all rows, or ``[batch]``."""

    logit: float | None = attrs.field(
        default=None,
        kw_only=True,
        converter=as_real,
        validator=validators.optional(one_real("finite in float32", lambda logit: abs(logit) <= FLOAT32.max)),
    )
    """
    New logit of all *tokens*, forbidden ones included; None keeps their logits. Hugging Face uses
    0, which makes them equally likely.
    """

    _index: Tensor = attrs.field(init=False, repr=False)

    @max_length.validator
    def _check_one_limit(self, attribute: "attrs.Attribute[int | None]", value: object) -> None:
        if (value is None) == (self.max_new_tokens is None):
            raise ValueError(
                "exactly one of 'max_new_tokens' and 'max_length' must be given: "
                f"got {self.max_new_tokens!r} and {value!r}"
            )

    @_index.default
    def _make_index(self) -> Tensor:
        return torch.tensor(self.tokens, dtype=torch.int64)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask all other last tokens in ``[batch, width, vocab]`` logits, which are not modified."""
        index = index_of(self.tokens, logits, self._index)
        if self.logit is None:
            forced = keep_only(logits, index)
        else:
            forced = torch.full_like(logits, -torch.inf).scatter(-1, index, self.logit)
        return torch.where(self._left(logits, history) == 1, forced, logits)

    def _left(self, logits: Tensor, history: History) -> Tensor:
        """``[batch, width, 1]``: number of tokens left before the limit."""
        length = history.length[..., None]
        if self.max_length is not None:
            return per_row("max_length", self.max_length, logits) - length
        assert self.max_new_tokens is not None  # one of the two was given
        return per_row("max_new_tokens", self.max_new_tokens, logits) + history.prompt[:, None, None] - length
