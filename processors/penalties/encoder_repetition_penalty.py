"""Encoder repetition penalty: a reward for the prompt's tokens."""

from typing import ClassVar

import attrs
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.penalty_scaling import penalty_scaling
from ..numerics.token_occurrences import apply_to_tokens, prompt_slots
from ..parameter import FLOAT32, a_bool, as_reals, is_scalar, real


@attrs.frozen(eq=False)
class EncoderRepetitionPenalty(Composable):
    """
    Multiply positive logits of the prompt's tokens by *penalty* and divide negative ones.

    The inverse of a repetition penalty: above 1 rewards the prompt's tokens, below 1 discourages
    them; typically 1-1.5; no-op at 1. The name is Hugging Face's, where the tokens are the encoder's
    input, or the prompt without an encoder. For *shift_safe* see ``RepetitionPenalty``: the
    distribution is that of ``Renormalise() | EncoderRepetitionPenalty(penalty)``.
    """

    keeps_argmax: ClassVar[bool] = False
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    penalty: float | Tensor = attrs.field(
        converter=as_reals,
        # Its inverse must be a normal float32 number too.
        validator=real(
            f"in [{FLOAT32.tiny:.3g}, {1 / FLOAT32.tiny:.3g}]",
            lambda penalty: (penalty >= FLOAT32.tiny) & (penalty <= 1 / FLOAT32.tiny),
        ),
    )
    """One for all rows, or ``[batch]``."""

    shift_safe: bool = attrs.field(default=False, validator=a_bool)
    """Whether to work on log-probabilities, which are invariant to a shift of the logits."""

    @property
    def shift_invariant(self) -> bool:
        """Whether a constant added to a row leaves the distribution unchanged."""
        return self.shift_safe

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Reward prompt tokens in ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.penalty, 1.0):
            return logits
        formula = penalty_scaling(1 / self.penalty, logits, self.shift_safe)
        return apply_to_tokens(logits, history, prompt_slots(history), formula)
