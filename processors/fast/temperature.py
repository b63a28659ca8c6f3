"""Short cuts of temperature."""

from typing import cast

import attrs
import numpy as np
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.sampling.compiled.operation import Kind, Operation
from ...decoding.sampling.few_tokens import Cell, Few
from ...decoding.sampling.short_cuts import register
from ...decoding.temperature_divisor import finite_divisor
from ..parameter import per_row
from ..scaling.temperature import Temperature


@attrs.frozen(eq=False)
class FastTemperature:
    """:class:`~decodekit.processors.Temperature` in given memory, and of a few tokens."""

    stage: Temperature

    def into(self, logits: Tensor, history: History, out: Tensor) -> Tensor:
        """See :class:`~decodekit.decoding.sampling.short_cuts.WritesInto`."""
        temperature = per_row("temperature", self.stage.temperature, logits)
        return torch.div(logits, finite_divisor(temperature), out=out)

    @property
    def takes_few(self) -> bool:
        """Whether :meth:`of_few` supports these parameters."""
        temperature = self.stage.temperature
        return not isinstance(temperature, Tensor) and 1e-3 <= temperature <= 1e3

    def of_few(self, few: Few, cell: Cell) -> Few:
        """See :class:`~decodekit.decoding.sampling.short_cuts.Pointwise`."""
        ids, scores = few.arrays()
        return Few(ids, scores / np.float32(self.stage.temperature))

    def at_most(self, logit: np.float32) -> np.float32:
        """See :class:`~decodekit.decoding.sampling.short_cuts.Pointwise`."""
        return np.float32(logit / np.float32(self.stage.temperature))

    def operation(self) -> Operation:
        """See :class:`~decodekit.decoding.sampling.compiled.operation.HasOperation`."""
        return Operation(Kind.DIVIDE, cast("float", self.stage.temperature))


register(Temperature, FastTemperature)
