"""Programs over single rows of the cache: a forward of one row, and copies of rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .kv_cache.buffers import CacheBuffers
from .step import CacheProgram, DecoderStep


class RowStep(DecoderStep):
    """
    A forward of one row, ``(ids, cache_pos, row, slots, *cache) -> logits``.

    The row is an input, so that one program serves all rows: *ids* are ``[1, width]``, *cache_pos* and *row*
    ``[1]``, the logits ``[1, width or kept, vocab]``.
    """

    kind = "row"

    def forward(self, ids: Tensor, cache_pos: Tensor, row: Tensor, slots: Tensor, *cache: Tensor) -> Tensor:  # type: ignore[override]  # one input more
        """As :meth:`~.step.DecoderStep.forward`, of one row."""
        logits, _ = self.score(ids, cache_pos, slots, cache, self.write, row)
        return logits

    def padding(self, width: int, cache: CacheBuffers, span: int) -> tuple[Tensor, ...]:
        """The inputs of a forward of *width* over padding alone: what it is traced with."""
        start = torch.zeros(1, dtype=torch.int64)
        return torch.full((1, width), -1), start, start.clone(), cache.addresses(span), *cache.tensors


class CopyStep(CacheProgram):
    """
    Copies of rows, ``(source, slots, *cache) -> a number for each row``.

    *source*, ``[batch]``, is the row that each row becomes a copy of, in as many leading slots as there are
    *slots*. All rows are read before one is written. The result is there because compilers require an output,
    and depends on *slots* because they drop an input that nothing reads.
    """

    kind = "copy"

    width = 1
    """In the names of its programs, which have no columns."""

    def forward(self, source: Tensor, slots: Tensor, *cache: Tensor) -> Tensor:
        """Copy within *cache*, in place."""
        copied = copy_rows(source, slots, cache)
        for buffer, new in zip(cache, copied, strict=True):
            buffer.copy_(new)
        return copied_marks(copied, slots)

    def padding(self, width: int, cache: CacheBuffers, span: int) -> tuple[Tensor, ...]:
        """Inputs that make each row a copy of itself: what it is traced with."""
        return torch.arange(cache.keys[0].shape[0]), cache.addresses(span), *cache.tensors


def copied_marks(copied: Sequence[Tensor], slots: Tensor) -> Tensor:
    """The result of a :class:`CopyStep`, from the copied buffers: ``[batch]``."""
    return copied[-1][:, 0, 0, 0] + slots[:1]


def copy_rows(source: Tensor, slots: Tensor, cache: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The buffers of *cache* with the rows of *source* in as many leading slots as there are *slots*."""
    copied = len(slots)
    return tuple(
        torch.slice_scatter(buffer, buffer.narrow(2, 0, copied).index_select(0, source), 2, 0, copied)
        for buffer in cache
    )
