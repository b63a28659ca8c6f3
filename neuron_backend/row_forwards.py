"""Forwards of single rows of a decoder, and copies of rows."""

import abc
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..decoding.forward_checks import check_copy, check_row_inputs, check_row_widths
from ..decoding.protocols import DecoderShape
from ..decoding.validation import as_tuple
from .kv_cache.buffers import CacheBuffers
from .kv_cache.spans import end_position, smallest_span
from .step import DecoderStep, Step
from .threads import on_threads

ROW = "row"
"""Prefix of the names of the programs of one row."""


class RowForwards(abc.ABC):
    """
    The part of a :class:`~.static_decoder.StaticDecoder` that feeds and copies single rows.

    A row's cache is contiguous, so a program of one row runs over any of them.
    """

    shape: DecoderShape
    spans: tuple[int, ...]
    threads: int | None
    cache: CacheBuffers
    _slots: dict[int, Tensor]

    row_widths: tuple[int, ...] = ()
    """Columns of the forwards of one row; empty if there are none."""

    row_programs: Mapping[int, Sequence[Any]]
    """By width, a program for each row."""

    copies_rows: bool = True
    """Whether :meth:`copy_rows` may be called: not on Neuron, where an assignment would compile."""

    @property
    @abc.abstractmethod
    def step(self) -> DecoderStep:
        """The step of the programs for token sequences."""

    def offer_rows(self, widths: Sequence[int]) -> None:
        """
        Offer forwards of one row, which are eager until a target replaces them.

        Raises:
            ValueError: *widths* are not ascending, or not among those of the decoder.
        """
        widths = as_tuple("row_widths", widths)
        check_row_widths(widths, self.shape.widths)
        self.row_widths = widths
        rows = [self.cache.row(row) for row in range(self.shape.batch_size)]
        self.row_programs = {width: [partial(self._eager_row, row) for row in rows] for width in widths}

    def row_steps(self) -> list[tuple[Step, int]]:
        """Step and width of each program of one row."""
        return [(self.step, width) for width in self.row_widths]

    def forward_row(self, ids: Tensor, cache_pos: Tensor, row: int) -> Tensor:
        """
        Feed one row; see :meth:`~decodekit.decoding.optional_protocols.FeedsRows.forward_row`.

        Raises:
            ValueError: A wrong width, row, id or position. Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.
        """
        check_row_inputs(ids, cache_pos, row, self.shape, self.row_widths)
        slots = self._slots[smallest_span(self.spans, end_position(ids, cache_pos), None)]
        with on_threads(self.threads):
            logits: Tensor = self.row_programs[ids.shape[1]][row](ids, cache_pos, slots)
        return logits

    def copy_rows(self, source: Tensor, upto: int) -> None:
        """
        Copy leading slots; see :meth:`~decodekit.decoding.optional_protocols.CopiesRows.copy_rows`.

        Raises:
            ValueError: A wrong shape, row or number. Nothing has been written.

            TypeError: A wrong type.
        """
        if not self.copies_rows:
            raise TypeError(
                "rows of this decoder's cache cannot be copied: its target would have to compile it"
            )
        check_copy(source, upto, self.shape)
        written = (source != torch.arange(len(source))).nonzero()[:, 0]
        end = self.cache.reserved + upto
        with torch.no_grad():
            for buffer in self.cache.tensors:
                copied = buffer[source[written], :, :end]
                buffer[written, :, :end] = copied

    def _eager_row(self, cache: CacheBuffers, *inputs: Tensor) -> Any:
        with torch.no_grad():
            return self.step(*inputs, *cache.tensors)
