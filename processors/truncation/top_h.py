"""Top-H decoding: truncation to an entropy budget."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...decoding.history import History
from ..chain import Composable
from ..parameter import as_reals, one_integer, per_row, real

MOST_TOKENS = 2**20
"""The most tokens that are considered."""


@attrs.frozen(eq=False)
class TopH(Composable):
    """
    Keep the most likely tokens while their share of the entropy is at most *h*.

    Computed over the *top_n* most likely tokens, renormalised; each contributes -p log p. The token
    that exceeds the budget is dropped, the most likely token always stays, and ties are taken by
    ascending id. Typically 0.3-0.5. Never a no-op: at 1 the *top_n* most likely tokens stay.

    Potraghloo, Azizi, Kundu and Pedram, 2025, `Top-H Decoding: Adapting the Creativity and
    Coherence with Bounded Entropy in Text Generation <https://arxiv.org/abs/2509.02510>`_.
    """

    keeps_argmax: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = False  # a top-k, and sums in float64

    h: float | Tensor = attrs.field(
        converter=as_reals, validator=real("in (0, 1]", lambda h: (h > 0) & (h <= 1))
    )
    """A share of the entropy. One for all rows, or ``[batch]``."""

    top_n: int = attrs.field(
        default=100, validator=one_integer(f"1 to {MOST_TOKENS}", lambda n: 1 <= n <= MOST_TOKENS)
    )
    """
    Number of tokens considered in every row, at most :data:`MOST_TOKENS`. Fixed at 100 in Hugging Face.

    Memory is taken for all of them, however small the vocabulary.
    """

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask the tokens beyond the budget in ``[batch, width, vocab]`` logits, which are not modified."""
        width = min(self.top_n, logits.shape[-1])
        # Padded to a fixed width, so that the sums below round the same on the survivors of an
        # earlier processor.
        largest = pad(logits.topk(width, dim=-1).values, (0, self.top_n - width), value=-torch.inf)
        probs = largest.double().softmax(dim=-1)
        spent = torch.special.entr(probs).cumsum(dim=-1)
        paid = (spent <= per_row("h", self.h, spent) * spent[..., -1:]) & (probs > 0)
        count = paid.sum(dim=-1, keepdim=True).clamp(min=1)
        return _first(count, largest.gather(-1, count - 1), logits)


def _first(count: Tensor, last: Tensor, logits: Tensor) -> Tensor:
    """Mask all but the *count* largest, of which *last* is the smallest; ties keep the lower ids."""
    above, tied = logits > last, logits == last
    room = count - above.sum(dim=-1, keepdim=True)
    return logits.masked_fill(~above & ~(tied & (tied.cumsum(dim=-1, dtype=torch.int32) <= room)), -torch.inf)
