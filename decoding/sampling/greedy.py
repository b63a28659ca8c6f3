"""Greedy sampling."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ..history import History
from .short_cuts import register_module
from .top_tokens import top2_margin, top_tokens


@attrs.frozen(eq=False)
class Greedy:
    """
    Take the token with the largest logit; of ties, the lowest id.

    Equivalent to temperature 0; independent of the logits' scale and of any seed.
    """

    takes_argmax: ClassVar[bool] = True
    """Processors that keep the argmax may be omitted."""

    row_independent: ClassVar[bool] = True
    """Rows of several requests may be sampled together."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Logits ``[batch, width, vocab]`` to ids ``[batch, width]``."""
        # On the host, numpy's argmax is about ten times as fast as torch's.
        return torch.from_numpy(logits.numpy(force=True).argmax(axis=-1))

    def top_choices(self, logits: Tensor, history: History, n: int) -> Tensor:
        """The *n* most probable tokens ``[batch, width, n]``, in descending order; *n* <= vocab."""
        return top_tokens(logits, n)

    def gap(self, logits: Tensor, history: History) -> Tensor:
        """
        The margin of each column's token over the next, ``[batch, width]`` float64; 0 for ties.

        The token does not change as long as no logit changes by half of it.
        """
        return top2_margin(logits.double())


register_module(f"{__package__}.greedy_short_cuts")
