"""Forwards of single rows of a decoder, and copies of rows."""

import abc
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ..decoding.forward_checks import check_copy, check_row_inputs, check_row_widths
from ..decoding.protocols import DecoderShape
from ..decoding.validation import as_tuple
from .kv_cache.buffers import CacheBuffers
from .kv_cache.spans import end_position, smallest_span
from .row_steps import CopyStep, RowStep
from .step import CacheProgram, DecoderStep
from .tensor_parallel.lost_ranks import in_lockstep
from .tensor_parallel.ranks import Ranks
from .threads import on_threads

CopyProgram = Callable[[Tensor, Tensor], object]
"""Source rows and slots, as :class:`~.row_steps.CopyStep` takes them."""


class RowForwards(abc.ABC):
    """The part of a :class:`~.static_decoder.StaticDecoder` that feeds and copies single rows."""

    shape: DecoderShape
    spans: tuple[int, ...]
    threads: int | None
    cache: CacheBuffers
    ranks: Ranks | None
    _slots: dict[int, Tensor]

    row_widths: tuple[int, ...] = ()
    """Columns of the forwards of one row; empty if there are none."""

    row_programs: Mapping[int, Sequence[Any]]
    """By width, a program for each row."""

    copies_rows: bool = True
    """Whether :meth:`copy_rows` may be called."""

    copies_by_program: bool = False
    """Whether :meth:`copy_rows` needs a program, where an assignment would have to be compiled."""

    copy_program: CopyProgram | None = None
    """Copies rows. None: by assignment."""

    @property
    @abc.abstractmethod
    def step(self) -> DecoderStep:
        """The step of the programs for token sequences."""

    @cached_property
    def row_step(self) -> RowStep:
        """The step of a program that serves any row."""
        return RowStep(self.step.model, self.shape.scored_width)

    @cached_property
    def copy_step(self) -> CopyStep:
        """The step of the program that copies rows."""
        return CopyStep()

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

    def row_steps(self) -> list[tuple[CacheProgram, int]]:
        """Step and width of each program that serves any row: its forwards, and copies if they need one."""
        rows: list[tuple[CacheProgram, int]] = [(self.row_step, width) for width in self.row_widths]
        return rows + [(self.copy_step, CopyStep.width)] * (self.copies_rows and self.copies_by_program)

    def forward_row(self, ids: Tensor, cache_pos: Tensor, row: int, span: int | None = None) -> Tensor:
        """
        Feed one row; see :meth:`~decodekit.decoding.optional_protocols.FeedsRows.forward_row`.

        Args:
            ids: Tokens, ``[1, width]``.

            cache_pos: Position of the first column, ``[1]``.

            row: The row.

            span: As in :meth:`~.static_decoder.StaticDecoder.forward`.

        Raises:
            ValueError: A wrong width, row, id or position, or other inputs than another rank's. Nothing has
                been written.

            TypeError: A wrong dtype. Nothing has been written.
        """
        check_row_inputs(ids, cache_pos, row, self.shape, self.row_widths)
        slots = self._slots[smallest_span(self.spans, end_position(ids, cache_pos), span)]
        with (
            on_threads(self.threads),
            in_lockstep(self.ranks, ids, cache_pos, torch.tensor([row]), slots[-1:]),
        ):
            logits: Tensor = self.row_programs[ids.shape[1]][row](ids, cache_pos, slots)
        return logits

    def copy_rows(self, source: Tensor, upto: int) -> None:
        """
        Copy leading slots; see :meth:`~decodekit.decoding.optional_protocols.CopiesRows.copy_rows`.

        Raises:
            ValueError: A wrong shape, row or number, or other ones than another rank's. Nothing has been
                written.

            TypeError: A wrong type, or a decoder that cannot copy.
        """
        if not self.copies_rows:
            raise TypeError(
                "rows of this decoder's cache cannot be copied: it has no copies of rows "
                "(copies_rows=True of compile_decoder)"
            )
        check_copy(source, upto, self.shape)
        with in_lockstep(self.ranks, source, torch.tensor([upto])):
            if self.copy_program is None:
                self._assign_rows(source, upto)
            else:
                self.copy_program(source, self._slots[smallest_span(self.spans, upto, None)])

    def _assign_rows(self, source: Tensor, upto: int) -> None:
        written = (source != torch.arange(len(source))).nonzero()[:, 0]
        end = self.cache.reserved + upto
        with torch.no_grad():
            for buffer in self.cache.tensors:
                copied = buffer[source[written], :, :end]
                buffer[written, :, :end] = copied

    def _eager_row(self, cache: CacheBuffers, *inputs: Tensor) -> Any:
        with torch.no_grad():
            return self.step(*inputs, *cache.tensors)
