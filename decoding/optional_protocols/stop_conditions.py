"""
Optional capabilities of stop conditions.

The short cut of a stop condition computes the result of a call in a faster way. It is used for classes
declared by :func:`has_short_cuts` and not for their subclasses, which may change the result of a call.
Those of processors and samplers are in :mod:`~decodekit.decoding.sampling.short_cuts`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

from ..protocols import StopCondition

Kind = TypeVar("Kind", bound=type)

_with_short_cuts: set[type] = set()


def has_short_cuts(kind: Kind) -> Kind:
    """Declare, as the outermost decorator, that this condition's short cut gives the results of its calls."""
    _with_short_cuts.add(kind)
    return kind


def offers_short_cuts(part: object) -> bool:
    """Whether the exact class of *part*, a stop condition, has declared its short cut."""
    return type(part) in _with_short_cuts


TokenCode: TypeAlias = Callable[[int, int, int, int], int]
"""
The code of one new token: ``(token, length, prompt, row)``; *length* includes the token.

It is told every new token of a row in order, and may keep them. After an error in a step, tokens of that
step are told again.
"""


RowLimit: TypeAlias = Callable[[int, int], int]
"""The most new tokens of a row: ``(prompt, row)``, with the number of the prompt's tokens."""


@runtime_checkable
class LimitsTokens(Protocol):
    """A condition that ends each row after a known number of new tokens; no token is drafted beyond it."""

    def most_new_tokens(self) -> RowLimit | None:
        """The most new tokens of a row; None if there may be any number."""


@runtime_checkable
class TellsByToken(Protocol):
    """A condition with a short cut for one token a row, without arrays."""

    def by_token(self) -> TokenCode | None:
        """The code of one new token, given a row's tokens one by one; None if it depends on more."""


@runtime_checkable
class ChecksRows(Protocol):
    """A condition with a value for each row; checked when a run begins."""

    def check_rows(self, rows: int) -> None:
        """Raise ``ValueError`` where it has no value for each of *rows* rows."""


@runtime_checkable
class BeginsStop(Protocol):
    """A condition with state; each run begins its own."""

    def begin(self) -> StopCondition:
        """The condition for one run."""


@runtime_checkable
class CombinesConditions(Protocol):
    """A condition that is composed of others."""

    conditions: Sequence[StopCondition]
    """The others."""


@runtime_checkable
class ReadsText(Protocol):
    """A condition that decodes the ids, which a generator with a tokenizer must decode in the same way."""

    skip_special_tokens: bool
    """Whether special tokens are left out."""
