"""Presence penalty."""

from typing import ClassVar

import attrs
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.token_occurrences import apply_to_tokens, largest_per_token, seen_slots, slot_weights
from ..parameter import a_bool, a_fade, a_window, as_integers, as_reals, as_window, is_scalar, per_row, real


@attrs.frozen(eq=False)
class PresencePenalty(Composable):
    """
    Subtract *penalty* once from the logit of each token that occurred.

    Above 0 discourages, below 0 encourages; typically -2 to 2; no-op at 0. mlx-lm counts in a
    window of the last 20 tokens, llama.cpp of the last 64, OpenAI and vLLM everywhere.

    OpenAI, `API reference <https://platform.openai.com/docs/api-reference/chat/create>`_,
    ``presence_penalty``.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    penalty: float | Tensor = attrs.field(
        converter=as_reals, validator=real("a number", lambda penalty: penalty == penalty)
    )
    """One for all rows, or ``[batch]``."""

    include_prompt: bool = attrs.field(default=False, validator=a_bool)
    """Whether the prompt's tokens count. By definition only generated tokens do."""

    window: int | Tensor | None = attrs.field(default=None, converter=as_window, validator=a_window)
    """Number of last tokens that count: None for all, one number for all rows, or ``[batch]``."""

    fade: int | Tensor = attrs.field(default=0, converter=as_integers, validator=a_fade)
    """
    Number of tokens beyond the window over which the penalty fades out linearly, as in exllamav3
    (*window* is its sustain range, *fade* its decay range). 0 is off. One for all rows, or ``[batch]``.
    """

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Penalise ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.penalty, 0.0) or (is_scalar(self.window, 0) and is_scalar(self.fade, 0)):
            return logits
        penalty = per_row("penalty", self.penalty, logits)
        if not is_scalar(self.fade, 0):
            shares = slot_weights(history, logits, self.include_prompt, self.window, self.fade)
            return logits - penalty * largest_per_token(logits, history, shares > 0, shares)
        slots = seen_slots(history, logits, self.include_prompt, self.window)
        return apply_to_tokens(logits, history, slots, lambda seen: seen - penalty)
