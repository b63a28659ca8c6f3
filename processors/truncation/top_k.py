"""Top-k filtering."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.ranking import beyond_kth, kth_per_row
from ..parameter import as_integers, integer, is_scalar, one_of, per_row


@attrs.frozen(eq=False)
class TopK(Composable):
    """
    Keep the *k* largest logits of each row.

    Typically 20-100; 0 is off, and a *k* beyond the vocabulary keeps everything.

    Fan, Lewis and Dauphin, 2018, `Hierarchical Neural Story Generation
    <https://arxiv.org/abs/1805.04833>`_.
    """

    keeps_argmax: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    # neuronx-cc supports a 2-D top-k over some 16,000 columns; this one would become a sort.
    device_safe: ClassVar[bool] = False

    k: int | Tensor = attrs.field(
        converter=as_integers, validator=integer(">= 0 (0 is off)", lambda k: k >= 0)
    )
    """One for all rows, or ``[batch]``."""

    ties: str = attrs.field(default="keep", validator=one_of("keep", "first"))
    """
    Tokens tied with the k-th: ``"keep"`` keeps them all, possibly more than *k* (Hugging Face,
    vLLM); ``"first"`` keeps the lowest ids, exactly *k*.
    """

    _largest: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        # A graph needs the largest k as a constant.
        largest = int(self.k.max()) if isinstance(self.k, Tensor) else self.k
        object.__setattr__(self, "_largest", max(largest, 1))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask all but the *k* largest of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.k, 0):
            return logits
        k = per_row("k", self.k, logits)
        kth = kth_per_row(logits, k, self._largest)
        beyond = logits < kth if self.ties == "keep" else beyond_kth(logits, kth, k)
        return logits.masked_fill(beyond, -torch.inf)
