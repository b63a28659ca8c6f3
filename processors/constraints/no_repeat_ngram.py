"""No repeated n-grams."""

from typing import ClassVar

import attrs
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.token_occurrences import forbid_tokens, repeated_ngram_ends
from ..parameter import a_bool, a_window, as_integers, as_window, integer, is_scalar


@attrs.frozen(eq=False)
class NoRepeatNgram(Composable):
    """
    Forbid every token that would complete an *n*-gram that occurred before.

    The prompt counts, as in Hugging Face. 1 forbids each token after its first use; typically
    3-5; 0 is off. A hard constraint: it can leave a row without a token.

    Paulus, Xiong and Socher, 2017, `A Deep Reinforced Model for Abstractive Summarization
    <https://arxiv.org/abs/1705.04304>`_, section 2.5.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    n: int | Tensor = attrs.field(
        converter=as_integers, validator=integer(">= 0 (0 is off)", lambda n: n >= 0)
    )
    """One for all rows, or ``[batch]``."""

    include_prompt: bool = attrs.field(default=True, validator=a_bool)
    """Whether the prompt's n-grams count, as they do in Hugging Face."""

    window: int | Tensor | None = attrs.field(default=None, converter=as_window, validator=a_window)
    """Number of last tokens that count: None for all, one number for all rows, or ``[batch]``."""

    _largest: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        # A graph needs the largest n as a constant.
        largest = int(self.n.max()) if isinstance(self.n, Tensor) else self.n
        object.__setattr__(self, "_largest", max(largest, 1))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Forbid repetition in ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.n, 0) or is_scalar(self.window, 0):
            return logits
        ends = repeated_ngram_ends(history, logits, self.n, self.include_prompt, self.window, self._largest)
        return forbid_tokens(logits, history, ends)
