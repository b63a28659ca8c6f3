"""Optional capabilities of processors."""

from typing import Protocol, Self, runtime_checkable

from ..protocols import Processor


@runtime_checkable
class Composed(Protocol):
    """A processor that applies others in order, such as a chain."""

    processors: tuple[Processor, ...]
    """The processors, in order."""


def stages_of(processors: Processor | None) -> tuple[Processor, ...]:
    """The processors of a chain, a single processor as a tuple of one, or none for None."""
    if isinstance(processors, Composed):
        return processors.processors
    return () if processors is None else (processors,)


@runtime_checkable
class KeepsArgmax(Protocol):
    """A processor that leaves the largest logit the largest, so greedy runs omit it at the chain's end."""

    keeps_argmax: bool
    """Whether it does. Rounding may tie the largest with another."""


@runtime_checkable
class ShiftInvariant(Protocol):
    """A processor whose distribution does not change when a constant is added to a row of logits."""

    shift_invariant: bool
    """Whether it is."""


@runtime_checkable
class Local(Protocol):
    """A processor that reads no ids and ignores ``-inf``, so it may run on the survivors of a truncation."""

    local: bool
    """Whether it is. One that declares this, True or False, must keep no reference to its logits."""


@runtime_checkable
class DeviceSafe(Protocol):
    """A processor of operations that neuronx-cc compiles, so it may become part of a forward."""

    device_safe: bool
    """Whether it is."""


@runtime_checkable
class RowIndependent(Protocol):
    """
    A processor, sampler or feeder whose result for a row does not depend on which row of the batch it is.

    It has no parameter with one value per row and no state of a row. So rows of several requests with this
    processor may be processed together; and requests may take any row of this feeder.
    """

    row_independent: bool
    """Whether it is."""


@runtime_checkable
class NumbersRows(Protocol):
    """A processor that depends on the numbers of the rows, such as one that hands them to a function."""

    def from_row(self, first: int) -> Self:
        """The processor of a batch that begins at row *first* of this one's; itself where they are equal."""


def numbered_from(processors: Processor | None, first: int) -> Processor | None:
    """*processors* for a batch that begins at row *first* of theirs; themselves where they are equal."""
    return processors.from_row(first) if isinstance(processors, NumbersRows) else processors


@runtime_checkable
class CallsFunctions(Protocol):
    """A processor of ours that calls a function of its user's."""

    calls_functions: bool
    """Whether it does."""


def runs_foreign_code(part: object) -> bool:
    """Whether *part* is not ours, or calls a function of its user's: it may run a model of its own."""
    ours = type(part).__module__.partition(".")[0] == __name__.partition(".")[0]
    return not ours or (isinstance(part, CallsFunctions) and part.calls_functions)


def is_row_independent(part: object) -> bool:
    """Whether *part* is :attr:`~RowIndependent.row_independent`; True if it does not say so."""
    return not isinstance(part, RowIndependent) or part.row_independent


def says_row_independent(part: object) -> bool:
    """Whether *part* is :attr:`~RowIndependent.row_independent`; False if it does not say so."""
    return isinstance(part, RowIndependent) and part.row_independent
