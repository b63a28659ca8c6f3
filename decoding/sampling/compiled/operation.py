"""What the compiled routine can do with a few tokens."""

import ctypes
from enum import IntEnum
from typing import Protocol, runtime_checkable

import attrs


class Kind(IntEnum):
    """Kinds of operations; the numbers are those of ``csrc/stages.h``."""

    PENALISE_OCCURRING = 0
    """Divide the positive logits of tokens that occurred by *number* >= 1, and multiply the others."""

    DIVIDE = 1
    """Divide all logits by *number*."""

    KEEP_LARGEST = 2
    """Keep the *count* largest logits, and those that tie with the smallest of them."""

    KEEP_MASS = 3
    """Keep the most probable tokens whose probabilities reach *number*, but at least *count*."""


@attrs.frozen
class Operation:
    """One operation on the few tokens of a column, in single precision."""

    kind: Kind

    number: float = 0.0

    count: int = -1
    """For :attr:`Kind.PENALISE_OCCURRING` the number of last tokens that count; -1 for all."""

    include_prompt: bool = True
    """For :attr:`Kind.PENALISE_OCCURRING`: whether the prompt's tokens count."""


@runtime_checkable
class HasOperation(Protocol):
    """A stage's short cut that the compiled routine knows."""

    def operation(self) -> Operation:
        """The operation that :meth:`~..short_cuts.OfFew.of_few` stands for, if the stage takes few tokens."""
        ...


class CStage(ctypes.Structure):
    """An :class:`Operation` as ``Stage`` of ``csrc/stages.h``."""

    _fields_ = (
        ("kind", ctypes.c_int64),
        ("number", ctypes.c_double),
        ("count", ctypes.c_int64),
        ("from_prompt", ctypes.c_int64),
    )

    @classmethod
    def of(cls, operation: Operation) -> "CStage":
        """*operation* for C."""
        return cls(operation.kind, operation.number, operation.count, operation.include_prompt)
