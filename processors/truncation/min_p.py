"""Min-p: a probability floor relative to the most likely token."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.ranking import below_best, kth_largest
from ..parameter import as_reals, is_scalar, one_integer, per_row, real


@attrs.frozen(eq=False)
class MinP(Composable):
    """
    Drop tokens with a probability below *p* times the largest one.

    A token at exactly the floor stays. Typically 0.01-0.2; no-op at 0.

    Nguyen et al., 2024, `Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM
    Outputs <https://arxiv.org/abs/2407.01082>`_, section 3.
    """

    keeps_argmax: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True

    p: float | Tensor = attrs.field(
        converter=as_reals, validator=real("in [0, 1]", lambda p: (p >= 0) & (p <= 1))
    )
    """One for all rows, or ``[batch]``."""

    min_tokens: int = attrs.field(default=1, validator=one_integer(">= 1", lambda n: n >= 1))
    """Minimum number of tokens kept in every row, plus tokens tied with the last of them."""

    @property
    def device_safe(self) -> bool:
        """Whether neuronx-cc supports every operation: above 1, *min_tokens* needs a top-k."""
        return self.min_tokens == 1

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask unlikely tokens of ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.p, 0.0):
            return logits
        # Relative to the largest logit: needs no sum over the vocabulary, which would round.
        unlikely = below_best(logits).exp() < per_row("p", self.p, logits)
        if self.min_tokens > 1:
            unlikely &= logits < kth_largest(logits, self.min_tokens)
        return logits.masked_fill(unlikely, -torch.inf)
