"""Forbidding repeated phrases."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..decoding.history import History
from .chain import Composable
from .occurring import rewrite
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
        return rewrite(
            logits, history, self._ends(history, n), lambda seen: torch.full_like(seen, -torch.inf)
        )

    def _ends(self, history: History, n: int | Tensor) -> Tensor:
        """``[batch, width, capacity]``: where an n-gram ends whose beginning was just repeated."""
        # No history repeats more than all of its tokens.
        before = min(self._largest - 1, history.ids.shape[-1])
        # Slots before the first, so that a window ends in every slot, whatever the row's n. They
        # hold no token: a window that begins there never matches.
        ids = pad(history.ids, (before, 0), value=-1)
        windows = ids.unfold(-1, before + 1, 1)[..., :-1]  # [batch, paths, capacity, before]
        offsets = torch.arange(before, device=ids.device)
        width = history.length.shape[1]
        suffix = ids.expand(-1, width, -1).gather(-1, history.length[..., None] + offsets)
        # A row with a smaller n looks at the last n - 1 tokens only.
        needless = offsets < before + 1 - n
        repeated = ((windows == suffix[..., None, :]) | needless[..., None, :]).all(dim=-1)
        return repeated & (n > 0) & history.valid()
