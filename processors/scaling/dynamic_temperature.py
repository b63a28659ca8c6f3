"""Dynamic temperature: a temperature that grows with the entropy."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.temperature_divisor import finite_divisor
from ..chain import Composable
from ..numerics.likelihood import entropy, relative
from ..parameter import FLOAT32, as_reals, is_scalar, per_row, real

_positive = real("> 0", lambda value: value > 0)
_normal = real(f"> 0, at least {FLOAT32.tiny:.3g}", lambda value: value >= FLOAT32.tiny)


@attrs.frozen(eq=False)
class DynamicTemperature(Composable):
    """
    Divide the logits by a temperature between *low* (entropy 0) and *high* (uniform).

    The temperature is low + (high - low) (H / H_max)^exponent, with H the entropy and H_max that
    of a uniform distribution over the unmasked tokens, so it depends on earlier truncation. A
    single remaining token keeps its logit. No-op if *low* and *high* are 1; *low* may exceed
    *high*.

    As in `llama.cpp <https://github.com/ggml-org/llama.cpp/pull/4972>`_, which takes it from
    koboldcpp; its parameters are the middle and half the range (low = middle - half). H_max there is of all
    candidates that are left, among them those that a stage has only masked.
    """

    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = False  # sums in float64

    low: float | Tensor = attrs.field(converter=as_reals, validator=_positive)
    """Temperature at entropy 0. One for all rows, or ``[batch]``."""

    high: float | Tensor = attrs.field(converter=as_reals, validator=_positive)
    """Temperature of a uniform distribution. One for all rows, or ``[batch]``."""

    exponent: float | Tensor = attrs.field(default=1.0, converter=as_reals, validator=_normal)
    """Above 1 the temperature stays low longer. One for all rows, or ``[batch]``."""

    @property
    def keeps_argmax(self) -> bool:
        """Whether the largest logit stays the largest: if no logit can overflow or underflow."""
        bounds = [torch.as_tensor(bound) for bound in (self.low, self.high)]
        return all(bool(((bound >= 1e-6) & (bound <= 1e6)).all()) for bound in bounds)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Scale ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.low, 1.0) and is_scalar(self.high, 1.0):
            return logits
        gaps, weights, total = relative(logits)
        left = (logits > -torch.inf).sum(dim=-1, keepdim=True)
        uncertainty = entropy(gaps, weights, total) / left.double().log()
        low, high = per_row("low", self.low, total), per_row("high", self.high, total)
        # Not pow, which special-cases some scalar exponents but not tensors of them.
        risen = (per_row("exponent", self.exponent, total) * uncertainty.log()).exp()
        # With one token, H and H_max are 0.
        temperature = torch.where(left > 1, low + (high - low) * risen, 1.0)
        scaled = logits / finite_divisor(temperature).to(logits.dtype)
        # An infinite logit has no entropy; what was removed stays removed.
        return torch.where(logits > -torch.inf, scaled, logits)
