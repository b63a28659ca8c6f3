"""Validation of processors and sampler before a decoder is compiled with them."""

from typing import Any

from torch import Tensor

from ...decoding.forward_checks import refuse_foreign
from ...decoding.optional_protocols import (
    DeclaresState,
    MeasuresGap,
    RanksTokens,
    TakesArgmax,
    is_stateful,
    stages_of,
)
from ...decoding.protocols import Processor, Sampler, StopCondition
from ...decoding.validation import is_whole
from ...processors.chain import Composable
from ...processors.parameter import options_of


def validate_pipeline(processors: Processor | None, sampler: Sampler | None) -> None:
    """
    Check that *processors* is a chain or processor, and *sampler* a sampler.

    Raises:
        TypeError: One of them is something else, such as a class, a stop condition, or the other of the two.
    """
    for name, part in (("processors", processors), ("sampler", sampler)):
        if part is None:
            continue
        if isinstance(part, type):
            raise TypeError(f"'{name}' must be an instance: got the class {part.__name__}")
        if isinstance(part, StopCondition):
            raise TypeError(f"'{name}' must be no stop condition: got {part!r}")
        if not callable(part) and not (name == "sampler" and is_stateful(part)):
            hint = " (join several with |)" if isinstance(part, list | tuple) else ""
            raise TypeError(f"'{name}' must be callable{hint}: got {part!r}")
    if isinstance(sampler, Composable):
        raise TypeError(f"'sampler' must choose, such as Greedy(): got the processor {sampler!r}")
    for stage in stages_of(processors):
        refuse_foreign(stage)
        if _is_sampler(stage):
            raise TypeError(f"'processors' must process logits, as TopK(50) does: got the sampler {stage!r}")


def check_rows(processors: Processor | None, batch_size: Any) -> None:
    """
    Check that per-row parameters have *batch_size* rows.

    Raises:
        ValueError: Those of one of decodekit's own stages have not.
    """
    if not is_whole(batch_size):
        return  # Rejected later.
    for stage in stages_of(processors):
        for name, value in options_of(stage).items() if isinstance(stage, Composable) else ():
            if isinstance(value, Tensor) and value.dim() == 1 and len(value) != batch_size:
                raise ValueError(
                    f"'{name}' of {type(stage).__name__} must have one value per row, "
                    f"{batch_size}: got {len(value)}"
                )


def _is_sampler(part: object) -> bool:
    """Whether *part* has the protocols of a sampler, which processors have not."""
    sampler_protocols = TakesArgmax | DeclaresState | RanksTokens | MeasuresGap
    return not isinstance(part, Composable) and isinstance(part, sampler_protocols)
