"""Discouraging what was said, each time."""

from typing import ClassVar

import attrs
import torch
from attrs import validators
from torch import Tensor

from ..decoding.history import History
from .chain import Composable
from .occurring import count
from .parameter import as_reals, is_scalar, per_row, real


@attrs.frozen(eq=False)
class FrequencyPenalty(Composable):
    """
    Subtract *penalty* from a token's logit for each time that it occurred.

    Above 0 discourages, below 0 encourages; typically -2 to 2; no-op at 0.

    OpenAI, `API reference <https://platform.openai.com/docs/api-reference/chat/create>`_,
    ``frequency_penalty``.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False  # looks through the history

    penalty: float | Tensor = attrs.field(
        converter=as_reals, validator=real("a number", lambda penalty: penalty == penalty)
    )
    """One for all rows, or ``[batch]``."""

    include_prompt: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """Whether the prompt's tokens count. In the definition only generated ones do."""

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Penalise ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.penalty, 0.0):
            return logits
        slots = history.valid() if self.include_prompt else history.generated()
        total = per_row("penalty", self.penalty, logits) * count(logits, history, slots)
        # A reward beyond the largest float would lift a forbidden token: -inf + inf is NaN.
        bound = torch.finfo(logits.dtype).max
        return logits - total.clamp(-bound, bound)
