"""Programs of single rows, from programs that are told the row."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor

from ..row_forwards import CopyProgram
from ..row_steps import CopyStep
from ..step import program_name

if TYPE_CHECKING:
    from ..static_decoder import Program, StaticDecoder


class RowPrograms(TypedDict):
    """Arguments of :meth:`~..static_decoder.StaticDecoder.replace_programs`."""

    row_programs: "dict[int, Sequence[Program]]"
    copy_program: CopyProgram | None


def for_rows(decoder: "StaticDecoder", programs: Mapping[str, Callable[..., Any]]) -> RowPrograms:
    """
    Arguments of :meth:`~..static_decoder.StaticDecoder.replace_programs` for single rows.

    Args:
        decoder: The decoder.

        programs: By :func:`~..step.program_name`, among others those of ``decoder.row_steps()``, without the
            cache.
    """
    rows = range(decoder.shape.batch_size)
    return {
        "row_programs": {
            width: [_of_row(programs[program_name(decoder.row_step, width)], row) for row in rows]
            for width in decoder.row_widths
        },
        "copy_program": programs.get(program_name(decoder.copy_step, CopyStep.width)),
    }


def _of_row(program: Callable[..., Any], row: int) -> "Program":
    number = torch.tensor([row])

    def run(ids: Tensor, cache_pos: Tensor, slots: Tensor) -> Tensor:
        logits: Tensor = program(ids, cache_pos, number, slots)
        return logits

    return run
