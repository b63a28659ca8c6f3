"""Stop conditions: what they share, and their composition with ``|`` and ``&``."""

import abc
import itertools
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from ..history import History
from ..optional_protocols import (
    BeginsStop,
    ChecksRows,
    CombinesConditions,
    LimitsTokens,
    RowLimit,
    TellsByToken,
    TokenCode,
    has_short_cuts,
    offers_short_cuts,
)
from ..protocols import Finish, StopCondition
from ..scores import Scores


class Stop(abc.ABC):
    """
    A stop condition with ``|`` and ``&``.

    A condition need not inherit from this: any object of the protocol composes with one that does.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def finishes(self) -> tuple[Finish, ...]:
        """All finishes that this condition can give."""

    @abc.abstractmethod
    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``: 0 to go on, *i* to end with ``finishes[i - 1]``."""

    def begin(self) -> StopCondition:
        """The condition for one run: itself, unless it has state."""
        return self

    def __or__(self, other: StopCondition) -> "AnyOf":
        return AnyOf((self, a_condition(other)))

    def __ror__(self, other: StopCondition) -> "AnyOf":
        return AnyOf((a_condition(other), self))

    def __and__(self, other: StopCondition) -> "AllOf":
        return AllOf(self, a_condition(other))

    def __rand__(self, other: StopCondition) -> "AllOf":
        return AllOf(a_condition(other), self)


def begin(condition: StopCondition) -> StopCondition:
    """*condition* for one run."""
    return condition.begin() if isinstance(condition, BeginsStop) else condition


def check_rows(condition: StopCondition, rows: int) -> None:
    """
    Check the conditions that have a value for each row.

    Raises:
        ValueError: One of them has values for another number of rows.
    """
    if isinstance(condition, ChecksRows):
        condition.check_rows(rows)
    if isinstance(condition, CombinesConditions):
        for part in condition.conditions:
            check_rows(part, rows)


def parts(condition: StopCondition) -> Iterator[StopCondition]:
    """The conditions that *condition* is composed of, or *condition* itself."""
    if isinstance(condition, CombinesConditions):
        for part in condition.conditions:
            yield from parts(part)
    else:
        yield condition


def by_token(condition: StopCondition) -> TokenCode | None:
    """The short cut of *condition* for one new token; None if it depends on more than the ids."""
    if offers_short_cuts(condition) and isinstance(condition, TellsByToken):
        return condition.by_token()
    return None


def most_new_tokens(condition: StopCondition) -> RowLimit | None:
    """The most new tokens of a row under *condition*; None if it does not say."""
    if offers_short_cuts(condition) and isinstance(condition, LimitsTokens):
        return condition.most_new_tokens()
    return None


def a_condition(other: StopCondition) -> StopCondition:
    """*other*, checked to be a stop condition."""
    if not isinstance(other, StopCondition):
        raise TypeError(f"a stop condition composes with stop conditions{how_to_wrap(other)}: got {other!r}")
    return other


def codes_of(condition: StopCondition, scores: Scores, history: History) -> Tensor:
    """
    The codes of *condition*.

    Raises:
        TypeError: They are no tensor ``[batch, width]``.

        ValueError: One is none of the condition's own, and would be taken for another condition's.
    """
    codes = condition(scores, history)
    if not isinstance(codes, Tensor) or codes.shape != history.length.shape:
        raise TypeError(
            f"a stop condition must give a tensor of codes, {list(history.length.shape)}: got {codes!r} from "
            f"{condition!r}"
        )
    found = codes.numpy(force=True)
    # Usually none holds, and conditions make their finishes anew.
    if found.any() and not ((found >= 0) & (found <= (count := len(condition.finishes)))).all():
        raise ValueError(
            f"a stop condition must give codes 0 to {count}, one for each of its finishes: got "
            f"{found.tolist()} from {condition!r}"
        )
    return codes


def how_to_wrap(other: Any) -> str:
    """A hint for an error message if *other* is a function or a Hugging Face criterion."""
    hint = " (wrap a function in StopWhen, Hugging Face's criteria in stop_from_transformers)"
    return hint if callable(other) else ""


@has_short_cuts
@attrs.frozen(eq=False)
class AnyOf(Stop):
    """End a row where any of *conditions* holds; at the same token, the first of them in order."""

    conditions: tuple[StopCondition, ...]

    _before: tuple[int, ...] = attrs.field(init=False, repr=False)
    """The number of finishes before each condition's own."""

    @_before.default
    def _finishes_before(self) -> tuple[int, ...]:
        counts = (len(condition.finishes) for condition in self.conditions[:-1])
        return tuple(itertools.accumulate(counts, initial=0))

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """The finishes of all conditions, in order."""
        return tuple(finish for condition in self.conditions for finish in condition.finishes)

    def begin(self) -> "AnyOf":
        """All conditions for one run."""
        return AnyOf(tuple(begin(condition) for condition in self.conditions))

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        result = np.zeros(history.length.shape, dtype=np.int64)
        for before, condition in zip(self._before, self.conditions, strict=True):
            code = codes_of(condition, scores, history).numpy(force=True)
            # Usually none holds.
            if code.any():
                result = np.where((result == 0) & (code > 0), code + before, result)
        return torch.from_numpy(result)

    def by_token(self) -> TokenCode | None:
        """The code of one token, if all conditions have this short cut."""
        known = [by_token(condition) for condition in self.conditions]
        codes = [(code, before) for code, before in zip(known, self._before, strict=True) if code is not None]

        def first(token: int, length: int, prompt: int, row: int) -> int:
            found = 0
            # All are told of every token, since a condition around this one may let the row go on.
            for code, before in codes:
                if (number := code(token, length, prompt, row)) and not found:
                    found = number + before
            return found

        return first if len(codes) == len(known) else None

    def most_new_tokens(self) -> RowLimit | None:
        """The fewest of all conditions that say it."""
        known = [limit for one in self.conditions if (limit := most_new_tokens(one)) is not None]
        return (lambda prompt, row: min(limit(prompt, row) for limit in known)) if known else None


@has_short_cuts
@attrs.frozen(eq=False)
class AllOf(Stop):
    """End a row at a token where both hold; both matches are hidden if either is."""

    first: StopCondition
    second: StopCondition

    @property
    def conditions(self) -> tuple[StopCondition, StopCondition]:
        """Both conditions."""
        return (self.first, self.second)

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One for each pair of their finishes."""
        return tuple(
            Finish(f"{a.reason} and {b.reason}", (a.matched, b.matched), a.hide or b.hide)
            for a in self.first.finishes
            for b in self.second.finishes
        )

    def begin(self) -> "AllOf":
        """Both conditions for one run."""
        return AllOf(begin(self.first), begin(self.second))

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        a, b = codes_of(self.first, scores, history), codes_of(self.second, scores, history)
        both = (a > 0) & (b > 0)
        return (
            torch.where(both, (a - 1) * len(self.second.finishes) + b, 0)
            if both.any()
            else torch.zeros_like(a)
        )

    def by_token(self) -> TokenCode | None:
        """The code of one token, if both have this short cut."""
        first, second, pairs = by_token(self.first), by_token(self.second), len(self.second.finishes)
        if first is None or second is None:
            return None

        def both(token: int, length: int, prompt: int, row: int) -> int:
            a, b = first(token, length, prompt, row), second(token, length, prompt, row)
            return (a - 1) * pairs + b if a and b else 0

        return both
