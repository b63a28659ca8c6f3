"""Hugging Face's processors among ours."""

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
    A ``transformers.LogitsProcessor``, a ``LogitsProcessorList`` or a function, as one of ours.

    It is called once for each row and column, with that column's own prefix ``[1, length]`` and
    a copy of its scores ``[1, vocab]``. So speculation works, nothing that it writes reaches
    our logits, and there is no padding; but it sees every row as row 0 of its batch, and what
    was built for the rows of one batch, such as the ids of several prompts, does not fit.

    Runs on the host, and is slow where there are many columns.

    Args:
        processor: Callable as ``processor(input_ids, scores)``. It has to be a function of the
            two alone: rows, and guesses that are dropped later, come in any order.

    Raises:
        ValueError: One of Hugging Face's that depends on earlier calls or on other rows.

        TypeError: No callable.
    """
    return FromTransformers(processor)


def _parts(processor: Any) -> Iterable[Any]:
    # Their list is a list, and callable.
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
    """What :func:`from_transformers` makes."""

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False

    processor: Callable[[Tensor, Tensor], Tensor] = attrs.field(validator=_check)
    """Theirs."""

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
