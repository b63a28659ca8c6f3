"""Whether requests can share a decoder."""

from ..cache.slots import feeder_of
from ..engine.parts import Parts
from ..optional_protocols import (
    AnyDecoder,
    NumbersRows,
    is_row_independent,
    runs_in_lockstep,
    stages_of,
    tree_nodes,
)
from ..stopping.composition import check_rows


def reason_not_to_share(parts: Parts, decoder: AnyDecoder) -> str | None:
    """
    Why requests with *parts* cannot share *decoder* in a batcher; None if they can.

    >>> from decodekit.decoding import MaxNewTokens
    >>> from decodekit.testing import ScriptedDecoder
    >>> import torch
    >>> reason_not_to_share(Parts(stop=MaxNewTokens([3, 5])), ScriptedDecoder(torch.eye(5)))
    "'n' must be one number in a request of one row, not one for each row: got 2"
    """
    if runs_in_lockstep(decoder):
        return "the decoder runs in lockstep with other processes"
    if not is_row_independent(feeder_of(decoder)):
        return "the decoder has something of its own for each row, such as a negative prompt"
    if parts.drafter is not None and tree_nodes(parts.drafter) is not None:
        return f"{type(parts.drafter).__name__} proposes draft trees"
    for stage in stages_of(parts.processors):
        if not is_row_independent(stage) and not isinstance(stage, NumbersRows):
            return f"{type(stage).__name__} has a value for each row"
    try:
        check_rows(parts.stop_condition, 1)
    except ValueError as error:
        return str(error)
    return None
