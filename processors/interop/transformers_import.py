"""Conversion of Hugging Face's processors to processors of decodekit."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable

_REFUSED = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "it keeps a model's cache from call to call",
    "SynthIDTextWatermarkLogitsProcessor": "it keeps the contexts that it has seen from call to call",
    "DiaEOSDelayPatternLogitsProcessor": "it counts its calls",
    "ClassifierFreeGuidanceLogitsProcessor": "it takes two rows for one",
    "DiaClassifierFreeGuidanceLogitsProcessor": "it takes two rows for one",
    "DiaEOSChannelFilterLogitsProcessor": "its rows are channels of one sound",
    "WhisperNoSpeechDetection": "it asks the model, and keeps what it heard from call to call",
}


def from_transformers(processor: Callable[[Tensor, Tensor], Tensor]) -> "FromTransformers":
    """
    Wrap a ``transformers.LogitsProcessor``, a ``LogitsProcessorList`` or a function as a processor.

    It is called once for each row and column, with copies of that column's prefix ``[1, length]``
    and scores ``[1, vocab]``. So speculation works, the logits are not modified, and there is no
    padding; but every row is row 0 of its own batch, so a processor built for the rows of one
    batch, such as from the ids of several prompts, does not work.

    Runs on the host; slow for many columns.

    Args:
        processor: Callable as ``processor(input_ids, scores)``. Must depend on these two alone:
            rows, and draft tokens that are rejected later, come in any order.

    Raises:
        ValueError: A processor of Hugging Face that depends on earlier calls or other rows.

        TypeError: *processor* is not callable.
    """
    return FromTransformers(processor)


def _parts(processor: Any) -> Iterable[Any]:
    # A LogitsProcessorList is a list, and callable.
    return processor if isinstance(processor, list) else (processor,)


def _check(instance: Any, attribute: "attrs.Attribute[Any]", processor: Any) -> None:
    if isinstance(processor, type) or not callable(processor):
        raise TypeError(f"'processor' must be callable as processor(input_ids, scores): got {processor!r}")
    for part in _parts(processor):
        for kind in type(part).__mro__:
            if kind.__name__ in _REFUSED:
                raise ValueError(
                    f"'processor' must be a function of the ids and the scores: got {part!r}; "
                    f"{_REFUSED[kind.__name__]}"
                )


@attrs.frozen(eq=False)
class FromTransformers(Composable):
    """Result of :func:`from_transformers`."""

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False
    calls_functions: ClassVar[bool] = True

    processor: Callable[[Tensor, Tensor], Tensor] = attrs.field(validator=_check)
    """The wrapped callable."""

    @property
    def row_independent(self) -> bool:
        """True: it is called with a column's prefix and scores alone."""
        return True

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Process ``[batch, width, vocab]`` logits, which are not modified, a column at a time."""
        batch, width, _ = logits.shape
        ids = history.ids.expand(-1, width, -1)
        lengths = history.length.tolist()
        rows = [
            torch.stack(
                [
                    self._column(ids[row, column, : lengths[row][column]], logits[row, column])
                    for column in range(width)
                ]
            )
            for row in range(batch)
        ]
        return torch.stack(rows)

    def _column(self, prefix: Tensor, scores: Tensor) -> Tensor:
        processed = self.processor(prefix[None].clone(), scores[None].clone())
        if not isinstance(processed, Tensor) or processed.shape != (1, len(scores)):
            found = list(processed.shape) if isinstance(processed, Tensor) else processed
            raise ValueError(f"'processor' must give scores [1, {len(scores)}]: got {found!r}")
        return processed[0].to(scores.dtype)
