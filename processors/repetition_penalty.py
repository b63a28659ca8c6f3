"""Discouraging what was said, in proportion to its logit."""

from typing import ClassVar

import attrs
import torch
from attrs import validators
from torch import Tensor

from ..decoding.history import History
from .chain import Composable
from .occurring import rewrite
from .parameter import FLOAT32, as_reals, is_scalar, per_row, real


@attrs.frozen(eq=False)
class RepetitionPenalty(Composable):
    """
    Divide the positive logits of tokens that occurred by *penalty*, and multiply the negative.

    How often a token occurred does not matter. Above 1 discourages, below 1 encourages;
    typically 1.05-1.3; no-op at 1. The effect depends on where the logits' zero lies: the
    penalty belongs before anything that shifts a row.

    Keskar et al., 2019, `CTRL: A Conditional Transformer Language Model for Controllable
    Generation <https://arxiv.org/abs/1909.05858>`_, section 4.1, which divides only; that
    negative logits are multiplied is the custom since, for else the penalty would be a reward.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False  # looks through the history

    penalty: float | Tensor = attrs.field(
        converter=as_reals,
        # Anything smaller is 0 among float32 logits, and 0 times infinity is not a number.
        validator=real(f"> 0, at least {FLOAT32.tiny:.3g}", lambda penalty: penalty >= FLOAT32.tiny),
    )
    """θ in the paper. One for all rows, or ``[batch]``."""

    include_prompt: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    """Whether the prompt's tokens count, as they do in Hugging Face."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Penalise ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.penalty, 1.0):
            return logits
        θ = per_row("penalty", self.penalty, logits)
        slots = history.valid() if self.include_prompt else history.generated()
        return rewrite(logits, history, slots, lambda seen: torch.where(seen < 0, seen * θ, seen / θ))
