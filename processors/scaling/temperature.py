"""Temperature."""

from typing import ClassVar

import attrs
import numpy as np
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.optional_protocols import has_short_cuts
from ...decoding.sampling.few_tokens import Cell, Few
from ..chain import Composable
from ..parameter import FLOAT32, as_reals, is_scalar, per_row, real


@has_short_cuts
@attrs.frozen(eq=False)
class Temperature(Composable):
    """
    Divide the logits by a temperature.

    Below 1 sharpens the distribution, above 1 flattens it. Typically 0.2-1.5; no-op at 1. For
    temperature 0 use the sampler ``Greedy()``.

    Ackley, Hinton and Sejnowski, 1985, `A Learning Algorithm for Boltzmann Machines
    <https://doi.org/10.1207/s15516709cog0901_7>`_.
    """

    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = True
    device_safe: ClassVar[bool] = True

    temperature: float | Tensor = attrs.field(
        converter=as_reals,
        # Anything smaller is 0 in float32, and 0 / 0 is NaN.
        validator=real(
            f"> 0, at least {FLOAT32.tiny:.3g} (for the likeliest token use Greedy())",
            lambda temperature: temperature >= FLOAT32.tiny,
        ),
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
        return logits / per_row("temperature", self.temperature, logits)

    def into(self, logits: Tensor, history: History, out: Tensor) -> Tensor:
        """As a call, written into *out*, which may be the logits themselves."""
        return torch.div(logits, per_row("temperature", self.temperature, logits), out=out)

    @property
    def takes_few(self) -> bool:
        """Whether :meth:`of_few` supports these parameters."""
        return not isinstance(self.temperature, Tensor) and 1e-3 <= self.temperature <= 1e3

    def of_few(self, few: Few, cell: Cell) -> Few:
        """See :class:`~decodekit.decoding.sampling.few_tokens.Pointwise`."""
        ids, scores = few.arrays()
        return Few(ids, scores / np.float32(self.temperature))

    def at_most(self, logit: np.float32) -> np.float32:
        """See :class:`~decodekit.decoding.sampling.few_tokens.Pointwise`."""
        return np.float32(logit / np.float32(self.temperature))
