"""No repeated n-grams of the prompt."""

from typing import ClassVar

import attrs
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.token_occurrences import forbid_tokens, match_lengths, prompt_slots
from ..parameter import as_integers, integer, is_scalar, per_row


@attrs.frozen(eq=False)
class EncoderNoRepeatNgram(Composable):
    """
    Forbid every token that would complete an *n*-gram of the prompt.

    Generated n-grams may repeat; for those use ``NoRepeatNgram``. 1 forbids the prompt's tokens;
    typically 3-5; 0 is off. A hard constraint: it can leave a row without a token. The name is
    Hugging Face's, where the n-grams are the encoder's input, or the prompt without an encoder.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    n: int | Tensor = attrs.field(
        converter=as_integers, validator=integer(">= 0 (0 is off)", lambda n: n >= 0)
    )
    """One for all rows, or ``[batch]``."""

    _largest: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        # A graph needs the largest n as a constant.
        largest = int(self.n.max()) if isinstance(self.n, Tensor) else self.n
        object.__setattr__(self, "_largest", max(largest, 1))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Forbid the prompt's n-grams in ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.n, 0):
            return logits
        n = per_row("n", self.n, logits)
        before = match_lengths(history, history.valid(), self._largest - 1)
        return forbid_tokens(logits, history, prompt_slots(history) & (before >= n - 1) & (n > 0))
