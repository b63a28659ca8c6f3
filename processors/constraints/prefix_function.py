"""Allowed tokens from a function of the prefix."""

from collections.abc import Callable, Iterable
from typing import ClassVar

import attrs
import torch
from attrs import validators
from torch import Tensor

from ...decoding.history import History
from ...decoding.validation import a_whole_number
from ..chain import Composable
from ..parameter import a_callable, as_token_ids, index_of
from .masking import keep_only

Function = Callable[[int, Tensor], Iterable[int]]


@attrs.frozen(eq=False)
class PrefixFunction(Composable):
    """
    Forbid all tokens except those a function returns.

    The function is called once for each column of a window, under speculation also for draft
    tokens that may be rejected: it must depend on its arguments alone. A hard constraint: if it
    returns no token, or only forbidden ones, the row has none (Hugging Face raises). Runs on the
    host: a graph cannot hold Python. No neutral value.

    De Cao et al., 2021, `Autoregressive Entity Retrieval <https://arxiv.org/abs/2010.00904>`_.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False
    calls_functions: ClassVar[bool] = True

    function: Function = attrs.field(validator=a_callable)
    """
    Called with the row's index in the batch, :attr:`first_row` added, and a copy of the tokens before the
    column, ``[length]`` int64 including the prompt; returns the ids that may follow.
    """

    first_row: int = attrs.field(default=0, kw_only=True, validator=[a_whole_number, validators.ge(0)])
    """
    The index of the first row. Set where the prompts of one call run as requests of one row each: more
    prompts than rows, or in a ``Batcher``.
    """

    def from_row(self, first: int) -> "PrefixFunction":
        """The processor of a batch that begins at row *first* of this one's."""
        return attrs.evolve(self, first_row=self.first_row + first) if first else self

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask all other tokens of ``[batch, width, vocab]`` logits, which are not modified."""
        processed = torch.full_like(logits, -torch.inf)
        for row in range(logits.shape[0]):
            for column in range(logits.shape[1]):
                allowed = as_token_ids(
                    self.function(self.first_row + row, history.before(row, column).clone())
                )
                if allowed:
                    here = slice(row, row + 1), slice(column, column + 1)
                    index = index_of(allowed, logits[here], torch.tensor(allowed))
                    processed[here] = keep_only(logits[here], index)
        return processed
