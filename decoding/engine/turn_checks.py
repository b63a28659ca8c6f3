"""Checks of processors where prompts take turns in the rows of a decoder."""

import torch

from ..history import History
from ..optional_protocols import NumbersRows, is_row_independent, runs_foreign_code, stages_of
from ..protocols import Processor


def check_one_value(processors: Processor | None, vocab_size: int, first: History, prompts: int) -> None:
    """
    Refuse processors with a value for each row, before anything is fed.

    Args:
        processors: A processor or a chain of them.

        vocab_size: Of the decoder.

        first: The first prompt, of width 1.

        prompts: How many there are; each is processed in a batch of its own.

    Raises:
        ValueError: A processor has more than one value.
    """
    for stage in stages_of(processors):
        if is_row_independent(stage) or isinstance(stage, NumbersRows) or runs_foreign_code(stage):
            continue
        try:
            stage(torch.zeros(1, 1, vocab_size), first)
        except ValueError as error:
            raise ValueError(
                f"a processor must have one value for all where {prompts} prompts take turns, "
                f"each in a batch of its own: got {stage!r} ({error})"
            ) from error
