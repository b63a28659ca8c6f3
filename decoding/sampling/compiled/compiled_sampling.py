"""Fast path for chains that leave a few tokens, all columns in one call of a compiled routine."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs
import torch
from torch import Tensor

from ...history import History
from ...scores import Scores
from .. import noise
from ..exponential_race import ExponentialRace
from ..fast_sampling import FastSampling, dense, is_on_host
from ..few_tokens import Few
from .library import library
from .operation import CStage, HasOperation, Kind

_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p


class _Batch(ctypes.Structure):
    """``Batch`` of ``csrc/few_tokens.cpp``."""

    _fields_ = (
        *(("logits", _POINTER), ("logits_row", _INT), ("logits_column", _INT)),
        *(("ids", _POINTER), ("ids_row", _INT), ("ids_column", _INT)),
        *(("lengths", _POINTER), ("prompts", _POINTER), ("random_streams", _POINTER)),
        ("columns", _POINTER),
        *(("rows", _INT), ("width", _INT), ("vocab", _INT)),
    )


@attrs.frozen(eq=False)
class CompiledSampling:
    """
    What :class:`~..fast_sampling.FastSampling` does, in a tenth of the time.

    Where the routine cannot guarantee the definition's result, *otherwise* decides.
    """

    otherwise: FastSampling

    _stages: Any
    """An array of :class:`~.operation.CStage`."""

    _k: int
    """The tokens that the chain keeps at most."""

    _routine: Any

    @classmethod
    def of(cls, otherwise: FastSampling) -> Self | None:
        """The same chain compiled; None if a part of it is unknown here, or there is no library."""
        cuts = (*otherwise.before, otherwise.narrows, *otherwise.after)
        operations = [cut.operation() for cut in cuts if isinstance(cut, HasOperation)]
        if len(operations) < len(cuts) or type(otherwise.draw) is not ExponentialRace:
            return None
        code = library()
        if code is None:
            return None
        routine = code.decodekit_sample_few
        routine.restype = ctypes.c_bool
        routine.argtypes = (_POINTER, _POINTER, _INT, _POINTER, _INT, _INT, *4 * (_POINTER,))
        k = next(operation.count for operation in operations if operation.kind is Kind.KEEP_LARGEST)
        stages = (CStage * len(operations))(*map(CStage.of, operations))
        return cls(otherwise, stages, k, routine)

    def __call__(
        self,
        logits: Tensor,
        history: History,
        rows: Sequence[int] | None = None,
        columns: Sequence[int] | None = None,
    ) -> tuple[Tensor, Scores] | None:
        """As :class:`~..pipeline.SamplingPipeline`; None if only the general path applies."""
        found = self._sampled(logits, history, range(len(logits)) if rows is None else rows, columns)
        return self.otherwise(logits, history, rows, columns) if found is None else found

    def _sampled(
        self, logits: Tensor, history: History, rows: Sequence[int], columns: Sequence[int] | None
    ) -> tuple[Tensor, Scores] | None:
        """None if a column is not clear, or the tensors are not laid out as the routine reads them."""
        noise.require_numbers()
        ids = history.ids
        if not is_on_host(logits) or logits.stride(2) != 1 or ids.stride(2) != 1:
            return None
        batch, width, vocab = logits.shape
        # Of more, the routine would refuse the column, after memory for all of them was taken.
        if self._k > vocab:
            return None
        capacity = 8 * self._k + 64
        lengths = history.length.contiguous()
        prompts, random_streams = history.prompt.contiguous(), history.random_stream.contiguous()
        of_rows = None if columns is None else (_INT * batch)(*columns)
        described = _Batch(
            *(logits.data_ptr(), logits.stride(0), logits.stride(1)),
            *(ids.data_ptr(), ids.stride(0), ids.stride(1) if ids.shape[1] > 1 else 0),
            *(lengths.data_ptr(), prompts.data_ptr(), random_streams.data_ptr()),
            None if of_rows is None else ctypes.addressof(of_rows),
            *(batch, width, vocab),
        )
        sampled = torch.empty(batch, width, dtype=torch.int64)
        left = torch.empty(batch, width, dtype=torch.int64)
        left_ids = torch.empty(batch, width, capacity, dtype=torch.int64)
        left_scores = torch.empty(batch, width, capacity)
        clear = self._routine(
            ctypes.addressof(described),
            *(self._stages, len(self._stages)),
            *((_INT * len(rows))(*rows), len(rows)),
            capacity,
            *(sampled.data_ptr(), left.data_ptr(), left_ids.data_ptr(), left_scores.data_ptr()),
        )
        shape = logits.shape
        return (sampled, Scores(lambda: dense(_few(left, left_ids, left_scores), shape))) if clear else None


def _few(left: Tensor, ids: Tensor, scores: Tensor) -> Mapping[tuple[int, int], Few]:
    """The remaining tokens of each column that was sampled."""
    counts, all_ids, all_scores = left.numpy(), ids.numpy(), scores.numpy()
    return {
        (row, column): Few(all_ids[row, column, :count], all_scores[row, column, :count])
        for row, of_row in enumerate(counts.tolist())
        for column, count in enumerate(of_row)
        if count
    }
