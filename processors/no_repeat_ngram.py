"""Forbidding repeated phrases."""

from typing import ClassVar

import attrs
from torch import Tensor
from torch.nn.functional import pad

from ..decoding.history import History
from .chain import Composable
from .occurring import forbid
from .parameter import as_integers, integer, is_scalar, per_row


@attrs.frozen(eq=False)
class NoRepeatNgram(Composable):
    """
    Forbid every token that would complete an *n*-gram which occurred before.

    The prompt counts, as in Hugging Face. 1 forbids each token after its first use; typically
    3-5; 0 is off. A hard constraint: it can leave a row without a token.

    Paulus, Xiong and Socher, 2017, `A Deep Reinforced Model for Abstractive Summarization
    <https://arxiv.org/abs/1705.04304>`_, section 2.5.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False  # looks through the history

    n: int | Tensor = attrs.field(
        converter=as_integers, validator=integer(">= 0 (0 is off)", lambda n: n >= 0)
    )
    """One for all rows, or ``[batch]``."""

    _largest: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        # A graph needs the width of its windows before it sees the rows.
        largest = int(self.n.max()) if isinstance(self.n, Tensor) else self.n
        object.__setattr__(self, "_largest", max(largest, 1))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Forbid repetition in ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.n, 0):
            return logits
        n = per_row("n", self.n, logits)
        return forbid(logits, history, self._ends(history, n))

    def _ends(self, history: History, n: int | Tensor) -> Tensor:
        """``[batch, width, capacity]``: where an n-gram ends whose beginning was just repeated."""
        capacity = history.ids.shape[-1]
        ends = (n > 0) & history.valid()
        # No history repeats more than all of its tokens.
        for back in range(1, min(self._largest, capacity + 1)):
            # The token so far before each slot, against the one so far before the column. In
            # front of the first slot lies no token, and nothing equals that.
            before = pad(history.ids, (back, 0), value=-1)[..., :capacity]
            at = (history.length - back).clamp(min=0)[..., None]
            last = history.ids.expand(-1, history.length.shape[1], -1).gather(-1, at)
            # A row with a smaller n looks at the last n - 1 tokens only.
            ends = ends & (((before == last) & (history.length[..., None] >= back)) | (n <= back))
        return ends
