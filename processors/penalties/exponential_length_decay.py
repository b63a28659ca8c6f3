"""Drawing to an end, ever more."""

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
    Raise the logit of the end exponentially once more than *start* tokens are generated.

    After *t* of them, l becomes l + |l| · (factor^(t - start) - 1), as in Hugging Face. Above 1
    shortens, below 1 lengthens; typically 1.01-1.5; no-op at 1. A logit of 0 does not move and
    the effect depends on where the logits' zero lies, unless *shift_safe*: then it works on
    log-probabilities, as under beam search in Hugging Face, and the distribution is that of
    ``Renormalise() | ExponentialLengthDecay(start, factor, eos)``, wherever the zero lies. An
    end that is forbidden stays so. The prompt does not count.
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
    """The tokens that end a sequence, ascending. One id may be given alone."""

    shift_safe: bool = attrs.field(default=False, validator=a_bool)
    """Whether to work on log-probabilities, which a shift of the logits does not change."""

    _log_factor: float | Tensor = attrs.field(init=False, repr=False)
    _index: Tensor = attrs.field(init=False, repr=False)

    @_index.default
    def _make_index(self) -> Tensor:
        return torch.tensor(self.eos, dtype=torch.int64)

    def __attrs_post_init__(self) -> None:
        # By one and the same logarithm, so that a row's factor rounds as the scalar would.
        if isinstance(self.factor, Tensor):
            logs = [math.log(factor) for factor in self.factor.tolist()]
            object.__setattr__(self, "_log_factor", torch.tensor(logs, dtype=torch.float64))
        else:
            object.__setattr__(self, "_log_factor", math.log(self.factor))

    @property
    def shift_invariant(self) -> bool:
        """Whether a constant added to a row changes nothing in the distribution."""
        return self.shift_safe

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Raise the end in ``[batch, width, vocab]`` logits, which are not modified."""
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
        # Each step stays finite, for infinity times nothing is NaN, and so is its softmax. In float16
        # ordinary factors get there: an end of 20 and the largest number add up to infinity.
        more = (size * growth.clamp(max=bound)).clamp(max=bound)
        return logits.scatter(-1, index, (end + more).clamp(max=bound))
