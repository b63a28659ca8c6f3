"""Keeping the k likeliest tokens."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ..decoding.history import History
from .chain import Composable
from .parameter import as_integers, integer, is_scalar, per_row


@attrs.frozen(eq=False)
class TopK(Composable):
    """
    Keep the *k* largest logits of each row.

    Tokens tied with the k-th stay too, as in Hugging Face, so more than *k* may be left.
    Typically 20-100; 0 is off, and a *k* beyond the vocabulary keeps everything.

    Fan, Lewis and Dauphin, 2018, `Hierarchical Neural Story Generation
    <https://arxiv.org/abs/1805.04833>`_.
    """

    keeps_argmax: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    # neuronx-cc takes a top-k of two dimensions over some 16,000 columns; this one it would sort.
    device_safe: ClassVar[bool] = False

    k: int | Tensor = attrs.field(
        converter=as_integers, validator=integer(">= 0 (0 is off)", lambda k: k >= 0)
    )
    """One for all rows, or ``[batch]``."""

    _largest: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        # A graph needs the number of columns to look for before it sees the rows.
        largest = int(self.k.max()) if isinstance(self.k, Tensor) else self.k
        object.__setattr__(self, "_largest", max(largest, 1))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask all but the *k* largest of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.k, 0):
            return logits
        k = per_row("k", self.k, logits)
        largest = logits.topk(min(self._largest, logits.shape[-1]), dim=-1).values
        if isinstance(k, Tensor):
            last = k.clamp(1, largest.shape[-1]) - 1
            kth = largest.gather(-1, last.expand(-1, logits.shape[1], 1)).masked_fill(k == 0, -torch.inf)
        else:
            kth = largest[..., -1:]
        return logits.masked_fill(logits < kth, -torch.inf)
