"""Asking a function which tokens may follow."""

from collections.abc import Callable, Iterable
from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..parameter import a_callable, as_token_ids, index_of
from .masking import keep_only

Function = Callable[[int, Tensor], Iterable[int]]


@attrs.frozen(eq=False)
class PrefixFunction(Composable):
    """
    Forbid all tokens but those that a function names.

    The function is called once for each column of a window, under speculation for guesses that
    may not stand: it has to depend on what it is given alone. A hard constraint: where it names
    no token, or none that is left, the row has none; Hugging Face raises there. Runs on the
    host: it is Python, which no graph holds.

    De Cao et al., 2021, `Autoregressive Entity Retrieval <https://arxiv.org/abs/2010.00904>`_.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False

    function: Function = attrs.field(validator=a_callable)
    """
    The number of the row in its batch and the tokens before the column, ``[length]`` int64 with
    the prompt, to the ids that may follow. The tensor is the function's own.
    """

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask all others in ``[batch, width, vocab]`` logits, which are not modified."""
        processed = torch.full_like(logits, -torch.inf)
        for row in range(logits.shape[0]):
            for column in range(logits.shape[1]):
                allowed = as_token_ids(self.function(row, history.before(row, column).clone()))
                if allowed:
                    here = slice(row, row + 1), slice(column, column + 1)
                    index = index_of(allowed, logits[here], torch.tensor(allowed))
                    processed[here] = keep_only(logits[here], index)
        return processed
