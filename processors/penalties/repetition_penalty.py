"""Repetition penalty."""

from collections.abc import Callable
from typing import ClassVar, cast

import attrs
import numpy as np
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.optional_protocols import has_short_cuts
from ...decoding.sampling.few_tokens import Cell, Few
from ..chain import Composable
from ..numerics.host_history import column_ids, counted_tokens, ids_with_logits, occurring_indices
from ..numerics.log_normaliser import log_normaliser
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
    per_row,
    real,
)


@has_short_cuts
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
        return self._penalised(logits, history, None)

    def into(self, logits: Tensor, history: History, out: Tensor) -> Tensor:
        """As a call, written into *out*, which may be the logits themselves; on the host."""
        if is_scalar(self.penalty, 1.0) or (is_scalar(self.window, 0) and is_scalar(self.fade, 0)):
            return out if out is logits else out.copy_(logits)
        plain = is_scalar(self.fade, 0) and not self.shift_safe
        if isinstance(self.penalty, Tensor) or isinstance(self.window, Tensor) or not plain:
            return self._penalised(logits, history, out)
        if out is not logits:
            out.copy_(logits)
        scores = out.numpy()
        for row, column, ids in column_ids(history, self.include_prompt, self.window):
            counting = ids_with_logits(ids, logits.shape[-1])
            seen = scores[row, column][counting]
            # Repeated tokens are written repeatedly with the same value. Overflow gives inf.
            with np.errstate(over="ignore"):
                penalised = np.where(seen < 0, seen * self.penalty, seen / self.penalty)
            scores[row, column][counting] = penalised
        return out

    @property
    def takes_few(self) -> bool:
        """Whether :meth:`of_few` supports these parameters: one penalty >= 1 for all rows."""
        scalars = not any(isinstance(value, Tensor) for value in (self.penalty, self.window))
        plain = is_scalar(self.fade, 0) and not self.shift_safe
        return scalars and plain and 1.0 <= cast("float", self.penalty) <= 1e3

    def of_few(self, few: Few, cell: Cell) -> Few:
        """See :class:`~decodekit.decoding.sampling.few_tokens.Pointwise`."""
        ids, scores = few.arrays()
        counting = counted_tokens(cell, self.include_prompt, cast("int | None", self.window))
        at = occurring_indices(ids, counting, cell.vocab)
        if not len(at):
            return few
        seen, scores = scores.take(at), scores.copy()
        # With a penalty >= 1 the smaller of the two is right for either sign.
        scores[at] = np.minimum(seen * self.penalty, seen / self.penalty)
        return Few(ids, scores)

    def at_most(self, logit: np.float32) -> np.float32:
        """See :class:`~decodekit.decoding.sampling.few_tokens.Pointwise`."""
        return logit

    def _penalised(self, logits: Tensor, history: History, out: Tensor | None) -> Tensor:
        formula = scaling(self.penalty, logits, self.shift_safe)
        if is_scalar(self.fade, 0):
            slots = seen_slots(history, logits, self.include_prompt, self.window)
            return apply_to_tokens(logits, history, slots, formula, out)
        shares = slot_weights(history, logits, self.include_prompt, self.window, self.fade)
        share = largest_per_token(logits, history, shares > 0, shares)
        faded = logits * (1 - share) + formula(logits) * share
        # -inf * 0 is NaN; and tokens that did not occur must not be rounded.
        faded = torch.where((share > 0) & (logits > -torch.inf), faded, logits)
        return faded if out is None else out.copy_(faded)


def scaling(penalty: float | Tensor, logits: Tensor, shift_safe: bool) -> Callable[[Tensor], Tensor]:
    """
    The elementwise formula of a repetition penalty.

    Args:
        penalty: One for all rows, or ``[batch]``.

        logits: ``[batch, width, vocab]``, unprocessed.

        shift_safe: Whether to scale the log-probability instead of the logit.

    Returns:
        A function of the logits ``[batch, width, n]`` of some tokens.
    """
    if not shift_safe:
        θ = per_row("penalty", penalty, logits)
        return lambda seen: torch.where(seen < 0, seen * θ, seen / θ)
    # θ log p plus the log-normaliser: l + (θ - 1) log p. θ - 1 is computed before the cast to
    # float32, so that θ = 1 gives the logit itself.
    more = per_row("penalty", penalty - 1, logits)
    normaliser = log_normaliser(logits)

    def scale(seen: Tensor) -> Tensor:
        log_p = (seen - normaliser).masked_fill(seen == -torch.inf, 0.0)
        return seen + more * log_p

    return scale
