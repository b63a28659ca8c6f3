"""The first run of each program of a decoder, on padding."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..decoding.protocols import DecoderShape
from .progress import Progress, stage


class WarmedDecoder(Protocol):
    """A decoder whose programs are run."""

    shape: DecoderShape
    tree_widths: tuple[int, ...]
    spans: tuple[int, ...]
    row_widths: tuple[int, ...]
    progress: Progress

    def forward(self, ids: Tensor, cache_pos: Tensor, span: int | None = None) -> Tensor:
        """As :meth:`~...decoding.protocols.Decoder.forward`, over one of :attr:`spans`."""
        ...

    def forward_tree(
        self, ids: Tensor, cache_pos: Tensor, parents: Tensor, span: int | None = None
    ) -> Tensor:
        """As :meth:`~...decoding.protocols.ScoresTrees.forward_tree`, likewise."""
        ...

    def forward_row(self, ids: Tensor, cache_pos: Tensor, row: int, span: int | None = None) -> Tensor:
        """As :meth:`~...decoding.optional_protocols.FeedsRows.forward_row`, likewise."""
        ...

    @property
    def copies_rows(self) -> bool:
        """Whether :meth:`copy_rows` may be called."""
        ...

    def copy_rows(self, source: Tensor, upto: int) -> None:
        """As :meth:`~...decoding.optional_protocols.CopiesRows.copy_rows`."""
        ...

    def warm_up_sampling(self, spans: Sequence[int]) -> None:
        """Run every program that samples."""
        ...


def warm_up(decoder: WarmedDecoder, spans: Sequence[int]) -> None:
    """Run every program of *decoder* once with each of *spans*, on padding."""
    rows = decoder.shape.batch_size
    start = torch.zeros(rows, dtype=torch.int64)
    for number, span in enumerate(spans, 1):
        with stage(decoder.progress, f"running programs over {span} positions", number, len(spans)):
            for width in decoder.shape.widths:
                decoder.forward(torch.full((rows, width), -1), start, span)
            for width in decoder.tree_widths:
                padding = torch.full((rows, width), -1)
                decoder.forward_tree(padding, start, padding, span)
            for width in decoder.row_widths:
                decoder.forward_row(torch.full((1, width), -1), start[:1], 0, span)
            if decoder.copies_rows:
                decoder.copy_rows(torch.arange(rows), span)
    decoder.warm_up_sampling(spans)
