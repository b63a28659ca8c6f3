"""Decoders that copy rows, and a scripted one that does not."""

from typing import Any

import torch
from torch import Tensor

from decodekit.decoding import DecoderShape
from decodekit.neuron_backend import StaticDecoder
from decodekit.testing import ScriptedDecoder

TABLE = torch.randn(31, 7, generator=torch.Generator().manual_seed(0))


class CopyingScripted(ScriptedDecoder):
    """A scripted decoder that copies rows of its cache of ids."""

    def copy_rows(self, source: Tensor, upto: int) -> None:
        """See CopiesRows."""
        self.slots[:, :upto] = self.slots[source, :upto]
        # What follows other tokens now is stale.
        moved = source != torch.arange(len(source))
        self.slots[moved, upto:] = -1


class CopyingStatic:
    """A decoder of a model, with a cache of which rows can be copied."""

    def __init__(self, decoder: StaticDecoder) -> None:
        self.decoder = decoder

    @property
    def shape(self) -> DecoderShape:
        """The decoder's."""
        return self.decoder.shape

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """The decoder's."""
        return self.decoder.forward(ids, cache_pos)

    def copy_rows(self, source: Tensor, upto: int) -> None:
        """See CopiesRows."""
        cache = self.decoder.cache
        for buffer in cache.tensors:
            buffer[:, :, : cache.reserved + upto] = buffer[source, :, : cache.reserved + upto]


def scripted(rows: int, copies: bool = False, **shape: Any) -> ScriptedDecoder:
    """A scripted decoder of so many rows."""
    kind = CopyingScripted if copies else ScriptedDecoder
    options = {"max_length": 24, "widths": (1, 4, 12), "scored_width": 4, "table": TABLE, **shape}
    return kind(batch_size=rows, **options)
