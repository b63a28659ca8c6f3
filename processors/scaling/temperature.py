"""Temperature."""

from typing import ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.temperature_divisor import finite_divisor
from ..chain import Composable
from ..parameter import as_reals, is_scalar, per_row, real


@attrs.frozen(eq=False)
class Temperature(Composable):
    """
    Divide the logits by a temperature.

    Below 1 sharpens the distribution, above 1 flattens it. Typically 0.2-1.5; no-op at 1. For
    temperature 0 use the sampler ``Greedy()``. Temperatures below 1e-20 act as 1e-20
    (:data:`~decodekit.decoding.temperature_divisor.SMALLEST_DIVISOR`), which leaves the maximum.

    Ackley, Hinton and Sejnowski, 1985, `A Learning Algorithm for Boltzmann Machines
    <https://doi.org/10.1207/s15516709cog0901_7>`_.
    """

    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = True

    temperature: float | Tensor = attrs.field(
        converter=as_reals,
        validator=real("> 0 (for the likeliest token use Greedy())", lambda temperature: temperature > 0),
    )
    """One for all rows, or ``[batch]``."""

    @property
    def keeps_argmax(self) -> bool:
        """Whether the largest logit stays the largest: if no logit can overflow or underflow."""
        return bool(torch.as_tensor((self.temperature >= 1e-6) & (self.temperature <= 1e6)).all())

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Scale ``[batch, width, vocab]`` logits, which are not modified."""
        if is_scalar(self.temperature, 1.0):
            return logits
        return logits / finite_divisor(per_row("temperature", self.temperature, logits))
