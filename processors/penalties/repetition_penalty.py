"""Repetition penalty."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.penalty_scaling import penalty_scaling
from ..numerics.token_occurrences import apply_to_tokens, largest_per_token, seen_slots, slot_weights
from ..parameter import (
    FLOAT32,
    a_bool,
    a_fade,
    a_window,
    as_integers,
    as_reals,
    as_window,
    is_scalar,
    real,
)


@attrs.frozen(eq=False)
class RepetitionPenalty(Composable):
    """
    Divide positive logits of tokens that occurred by *penalty* and multiply negative ones.

    The number of occurrences does not matter. Above 1 discourages, below 1 encourages; typically
    1.05-1.3; no-op at 1. The effect depends on a shift of the logits: place the penalty before
    any processor that shifts a row, or set *shift_safe*. Then it works on log-probabilities, as
    beam search in Hugging Face does: the distribution is that of
    ``Renormalise() | RepetitionPenalty(penalty)``.

    Keskar et al., 2019, `CTRL: A Conditional Transformer Language Model for Controllable
    Generation <https://arxiv.org/abs/1909.05858>`_, section 4.1, which divides only; multiplying
    negative logits became the convention, since dividing them would reward the token.
    """

    keeps_argmax: ClassVar[bool] = False
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    penalty: float | Tensor = attrs.field(
        converter=as_reals,
        # Anything smaller is 0 in float32, and 0 * inf is NaN.
        validator=real(f"> 0, at least {FLOAT32.tiny:.3g}", lambda penalty: penalty >= FLOAT32.tiny),
    )
    """θ in the paper. One for all rows, or ``[batch]``."""

    include_prompt: bool = attrs.field(default=True, validator=a_bool)
    """Whether the prompt's tokens count, as they do in Hugging Face."""

    window: int | Tensor | None = attrs.field(default=None, converter=as_window, validator=a_window)
    """Number of last tokens that count: None for all, one number for all rows, or ``[batch]``."""

    fade: int | Tensor = attrs.field(default=0, converter=as_integers, validator=a_fade)
    """
    Number of tokens beyond the window over which the penalty fades out linearly, as in exllamav3
    (*window* is its sustain range, *fade* its decay range). 0 is off. One for all rows, or ``[batch]``.
    """

    shift_safe: bool = attrs.field(default=False, validator=a_bool)
    """Whether to work on log-probabilities, which are invariant to a shift of the logits."""

    @property
    def shift_invariant(self) -> bool:
        """Whether a constant added to a row leaves the distribution unchanged."""
        return self.shift_safe

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Penalise ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.penalty, 1.0) or (is_scalar(self.window, 0) and is_scalar(self.fade, 0)):
            return logits
        formula = penalty_scaling(self.penalty, logits, self.shift_safe)
        if is_scalar(self.fade, 0):
            slots = seen_slots(history, logits, self.include_prompt, self.window)
            return apply_to_tokens(logits, history, slots, formula)
        shares = slot_weights(history, logits, self.include_prompt, self.window, self.fade)
        share = largest_per_token(logits, history, shares > 0, shares)
        faded = logits * (1 - share) + formula(logits) * share
        # -inf * 0 is NaN; and tokens that did not occur must not be rounded.
        return torch.where((share > 0) & (logits > -torch.inf), faded, logits)
