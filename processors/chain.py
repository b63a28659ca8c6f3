"""Composition of processors."""

import abc
from collections.abc import Iterable
from typing import Any

import attrs
from torch import Tensor

from ..decoding.forward_checks import refuse_foreign
from ..decoding.history import History
from ..decoding.optional_protocols import (
    DeviceSafe,
    KeepsArgmax,
    Local,
    NumbersRows,
    RowIndependent,
    ShiftInvariant,
)
from ..decoding.protocols import Processor, StopCondition
from ..decoding.validation import is_iterable
from .parameter import is_plain, options_of


class Composable(abc.ABC):
    """
    Base class that provides ``|``.

    Inheriting is optional: any callable composes with a processor that does.

    Declarations, False where missing (one protocol each in
    :mod:`decodekit.decoding.optional_protocols`):

    - ``keeps_argmax``: the largest logit stays the largest. Rounding may tie it with another;
      of exact ties at the top, top-p may keep only one.
    - ``shift_invariant``: a constant added to a row of logits does not change the resulting
      distribution.
    - ``local``: does not depend on token ids or ``-inf`` entries, so it may run on the survivors of
      an earlier processor alone, in their order.
    - ``device_safe``: uses only operations that neuronx-cc supports, given precomputed constants.
    - ``row_independent``: a row's result does not depend on which row of the batch it is, so rows of
      several requests with the same chain may be processed together. By default from the parameters:
      True if all are numbers, strings, None, or collections of those, each for all rows. One with
      other parameters, or with a collection of one value per row, overrides it.

    One that depends on the number of a row may have ``from_row``
    (:class:`~decodekit.decoding.optional_protocols.NumbersRows`).

    How a processor is made fast is no part of it: see
    :mod:`decodekit.decoding.sampling.short_cuts`.
    """

    __slots__ = ()

    @abc.abstractmethod
    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Process ``[batch, width, vocab]`` logits, which are not modified."""

    @property
    def row_independent(self) -> bool:
        """Whether a row's result does not depend on which row of the batch it is."""
        return attrs.has(type(self)) and all(map(is_plain, options_of(self).values()))

    def __or__(self, other: Processor) -> "Chain":
        """Apply *other* after this processor."""
        return Chain((self, other))

    def __ror__(self, other: Processor) -> "Chain":
        """Apply *other* before this processor."""
        return Chain((other, self))


def _flat(processors: Iterable[Processor]) -> tuple[Processor, ...]:
    if not is_iterable(processors):
        raise TypeError(f"'processors' must be a sequence of processors: got {processors!r}")
    flat: list[Processor] = []
    for processor in processors:
        flat.extend(processor.processors if isinstance(processor, Chain) else (processor,))
    return tuple(flat)


def _check_part(instance: "Chain", attribute: "attrs.Attribute[Any]", processors: tuple[Any, ...]) -> None:
    rule = "a chain takes processors, callables (logits, history) -> logits"
    for part in processors:
        if isinstance(part, StopCondition):
            raise TypeError(f"{rule}: got {part!r}, a stop condition")
        if isinstance(part, type):
            raise TypeError(f"{rule}: got the class {part.__name__}, not an instance of it")
        if not callable(part):
            raise TypeError(f"{rule}: got {part!r}, a {type(part).__name__}")
        refuse_foreign(part)


@attrs.frozen(eq=False)
class Chain(Composable):
    """
    Apply *processors* from left to right. A chain is itself a processor.

    Made by ``a | b``; nested chains are flattened; the empty chain is the identity. The order
    matters and is the caller's: top-p before the temperature truncates the model's distribution,
    after it the scaled one.

    A chain declares a property if all of its parts do.

    >>> from decodekit.processors import Temperature, TopK
    >>> Temperature(0.8) | TopK(50)
    Chain(processors=(Temperature(temperature=0.8), TopK(k=50, ties='keep')))
    """

    processors: tuple[Processor, ...] = attrs.field(default=(), converter=_flat, validator=_check_part)
    """In order of application."""

    @property
    def keeps_argmax(self) -> bool:
        """Whether the largest logit stays the largest."""
        return all(isinstance(part, KeepsArgmax) and part.keeps_argmax for part in self.processors)

    @property
    def shift_invariant(self) -> bool:
        """Whether a constant added to a row leaves the distribution unchanged."""
        return all(isinstance(part, ShiftInvariant) and part.shift_invariant for part in self.processors)

    @property
    def local(self) -> bool:
        """Whether no part depends on token ids or ``-inf`` entries."""
        return all(isinstance(part, Local) and part.local for part in self.processors)

    @property
    def device_safe(self) -> bool:
        """Whether every part uses only operations that neuronx-cc supports."""
        return all(isinstance(part, DeviceSafe) and part.device_safe for part in self.processors)

    @property
    def row_independent(self) -> bool:
        """Whether no part depends on which row of the batch it processes."""
        return all(isinstance(part, RowIndependent) and part.row_independent for part in self.processors)

    def from_row(self, first: int) -> "Chain":
        """The chain of a batch that begins at row *first* of this one's."""
        parts = [part.from_row(first) if isinstance(part, NumbersRows) else part for part in self.processors]
        same = all(new is old for new, old in zip(parts, self.processors, strict=True))
        return self if same else attrs.evolve(self, processors=parts)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Fold ``[batch, width, vocab]`` logits, which are not modified, through the chain."""
        for processor in self.processors:
            logits = processor(logits, history)
        return logits
