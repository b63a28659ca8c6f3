"""What may be asked to be part of a decoder's forwards, looked at before there is a decoder."""

from typing import Any

import attrs
from torch import Tensor

from ...decoding.checks import refuse_foreign
from ...decoding.protocols import Processor, Selection
from ...decoding.validation import is_whole
from ...processors.chain import Composable
from ..artifacts.chain_digest import stages_of

_OF_SELECTIONS = ("takes_argmax", "follows_logits", "several", "gap")
"""What selections declare or offer, and processors do not."""


def check_asked(processors: Processor | None, selection: Selection | None) -> None:
    """
    Refuse what is no chain of processors, or no selection.

    Raises:
        TypeError: One is something else, such as the other, a stop condition, or the class of one.
    """
    for name, part in (("processors", processors), ("selection", selection)):
        if part is None:
            continue
        if isinstance(part, type):
            raise TypeError(f"'{name}' must be an instance: got the class {part.__name__}")
        if hasattr(part, "endings"):
            raise TypeError(f"'{name}' must be no stop condition: got {part!r}")
        if not callable(part) and not (name == "selection" and getattr(part, "follows_logits", False)):
            hint = " (join several with |)" if isinstance(part, list | tuple) else ""
            raise TypeError(f"'{name}' must be callable{hint}: got {part!r}")
    if isinstance(selection, Composable):
        raise TypeError(f"'selection' must choose, such as Greedy(): got the processor {selection!r}")
    for stage in stages_of(processors):
        refuse_foreign(stage)
        if _is_selection(stage):
            raise TypeError(
                f"'processors' must process logits, as TopK(50) does: got the selection {stage!r}"
            )


def check_rows(processors: Processor | None, batch_size: Any) -> None:
    """
    Refuse parameters of another number of rows than the forwards have.

    Raises:
        ValueError: A stage of decodekit's own has them.
    """
    if not is_whole(batch_size):
        return  # By its own rule it is refused later.
    for stage in stages_of(processors):
        kind: Any = type(stage)
        if not isinstance(stage, Composable) or not attrs.has(kind):
            continue
        for field in attrs.fields(kind):
            value = getattr(stage, field.name) if field.init else None
            if isinstance(value, Tensor) and value.dim() == 1 and len(value) != batch_size:
                raise ValueError(
                    f"'{field.name}' of {kind.__name__} must have one value per row, "
                    f"{batch_size}: got {len(value)}"
                )


def _is_selection(part: object) -> bool:
    return not isinstance(part, Composable) and any(hasattr(part, name) for name in _OF_SELECTIONS)
