"""Exponential length decay: an end-of-sequence logit that grows with the length."""

import math
from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from ..numerics.log_normaliser import log_normaliser
from ..parameter import (
    FLOAT32,
    a_bool,
    as_integers,
    as_reals,
    as_token_ids,
    index_of,
    integer,
    is_scalar,
    per_row,
    real,
)


@attrs.frozen(eq=False)
class ExponentialLengthDecay(Composable):
    """
    Raise the end-of-sequence logit exponentially after *start* generated tokens.

    After *t* generated tokens, l becomes l + |l| · (factor^(t - start) - 1), as in Hugging Face.
    Above 1 shortens, below 1 lengthens; typically 1.01-1.5; no-op at 1. A logit of 0 does not move,
    and the effect depends on a shift of the logits, unless *shift_safe*: then it works on
    log-probabilities, as beam search in Hugging Face does, and the distribution is that of
    ``Renormalise() | ExponentialLengthDecay(start, factor, eos)``. A forbidden end of sequence stays
    forbidden. The prompt does not count.
    """

    keeps_argmax: ClassVar[bool] = False
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = True

    start: int | Tensor = attrs.field(
        converter=as_integers, validator=integer(">= 0", lambda start: start >= 0)
    )
    """In generated tokens. One for all rows, or ``[batch]``."""

    factor: float | Tensor = attrs.field(
        converter=as_reals,
        validator=real(f"> 0, at least {FLOAT32.tiny:.3g}", lambda factor: factor >= FLOAT32.tiny),
    )
    """One for all rows, or ``[batch]``."""

    eos: tuple[int, ...] = attrs.field(converter=as_token_ids)
    """End-of-sequence token ids, ascending. May be given as a single id."""

    shift_safe: bool = attrs.field(default=False, validator=a_bool)
    """Whether to work on log-probabilities, which are invariant to a shift of the logits."""

    _log_factor: float | Tensor = attrs.field(init=False, repr=False)
    _index: Tensor = attrs.field(init=False, repr=False)

    @_index.default
    def _make_index(self) -> Tensor:
        return torch.tensor(self.eos, dtype=torch.int64)

    def __attrs_post_init__(self) -> None:
        # The same logarithm for both, so that a per-row factor rounds as the scalar does.
        if isinstance(self.factor, Tensor):
            logs = [math.log(factor) for factor in self.factor.tolist()]
            object.__setattr__(self, "_log_factor", torch.tensor(logs, dtype=torch.float64))
        else:
            object.__setattr__(self, "_log_factor", math.log(self.factor))

    @property
    def shift_invariant(self) -> bool:
        """Whether a constant added to a row leaves the distribution unchanged."""
        return self.shift_safe

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Raise the end of sequence in ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.factor, 1.0) or not self.eos:
            return logits
        index = index_of(self.eos, logits, self._index)
        end = logits.gather(-1, index)
        generated = history.num_generated()[..., None]  # [batch, width, 1]
        beyond = (generated - per_row("start", self.start, logits)).clamp(min=0).to(logits.dtype)
        growth = (beyond * per_row("factor", self._log_factor, logits)).expm1()
        zero = log_normaliser(logits) if self.shift_safe else 0.0
        size = (end - zero).masked_fill(end == -torch.inf, 0.0).abs()
        bound = torch.finfo(logits.dtype).max
        # Clamp each step: inf * 0 is NaN. In float16 ordinary factors overflow: an end of sequence
        # at 20 plus the largest number is infinite.
        more = (size * growth.clamp(max=bound)).clamp(max=bound)
        return logits.scatter(-1, index, (end + more).clamp(max=bound))
