"""Where a row ends: what all stop conditions share, and the ones that look at ids."""

import abc
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import attrs
import numpy as np
import torch
from attrs import validators
from numpy.typing import NDArray
from torch import Tensor

from ..history import History
from ..optional_protocols import (
    BeginsStop,
    CombinesConditions,
    TellsByToken,
    TokenCode,
    has_short_cuts,
    offers_short_cuts,
)
from ..protocols import Finish, StopCondition
from ..scores import Scores
from ..validation import counts, token_ids


class Stop(abc.ABC):
    """
    A stop condition with ``|`` and ``&``.

    A condition need not inherit from this: any object of the protocol composes with one that does.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def finishes(self) -> tuple[Finish, ...]:
        """Every ending that this condition can give."""

    @abc.abstractmethod
    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``: 0 to go on, *i* to end with ``finishes[i - 1]``."""

    def begin(self) -> StopCondition:
        """The condition for one run: itself, unless it keeps something while a run lasts."""
        return self

    def __or__(self, other: StopCondition) -> "AnyOf":
        return AnyOf((self, a_condition(other)))

    def __ror__(self, other: StopCondition) -> "AnyOf":
        return AnyOf((a_condition(other), self))

    def __and__(self, other: StopCondition) -> "AllOf":
        return AllOf(self, a_condition(other))


def begin(condition: StopCondition) -> StopCondition:
    """*condition*, made ready for one run."""
    return condition.begin() if isinstance(condition, BeginsStop) else condition


def parts(condition: StopCondition) -> Iterator[StopCondition]:
    """The conditions that *condition* is composed of; itself if it is not."""
    if isinstance(condition, CombinesConditions):
        for part in condition.conditions:
            yield from parts(part)
    else:
        yield condition


def by_token(condition: StopCondition) -> TokenCode | None:
    """What *condition* says of one new token by its numbers alone; None if it looks at more."""
    if offers_short_cuts(condition) and isinstance(condition, TellsByToken):
        return condition.by_token()
    return None


def a_condition(other: StopCondition) -> StopCondition:
    """*other*, if it is a stop condition."""
    if not isinstance(other, StopCondition):
        raise TypeError(f"a stop condition composes with stop conditions{how_to_wrap(other)}: got {other!r}")
    return other


def how_to_wrap(other: Any) -> str:
    """A hint for who gave a function, or Hugging Face's criteria, for a stop condition."""
    hint = " (wrap a function in StopWhen, Hugging Face's criteria in stop_from_transformers)"
    return hint if callable(other) else ""


def newest(history: History) -> Tensor:
    """The newest token of each column, its own: ``[batch, width]``; anything in a column without tokens."""
    # A few numbers for each row: numpy takes a fraction of torch's time for them.
    ids, last = history.ids.numpy(), np.maximum(history.length.numpy() - 1, 0)
    path = np.arange(last.shape[1]) if ids.shape[1] > 1 else 0
    return torch.from_numpy(ids[np.arange(len(last))[:, None], path, last])


@has_short_cuts
@attrs.frozen(eq=False)
class AnyOf(Stop):
    """End at the first of *conditions*; at one token, at the first of them in order."""

    conditions: tuple[StopCondition, ...]

    _before: tuple[int, ...] = attrs.field(init=False, repr=False)
    """How many finishes stand before each one's own."""

    @_before.default
    def _endings_before(self) -> tuple[int, ...]:
        counts = (len(condition.finishes) for condition in self.conditions[:-1])
        return tuple(itertools.accumulate(counts, initial=0))

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """The finishes of all of them, in order."""
        return tuple(finish for condition in self.conditions for finish in condition.finishes)

    def begin(self) -> "AnyOf":
        """All of them made ready."""
        return AnyOf(tuple(begin(condition) for condition in self.conditions))

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        result = np.zeros(history.length.shape, dtype=np.int64)
        for before, condition in zip(self._before, self.conditions, strict=True):
            code = condition(scores, history).numpy(force=True)
            # Mostly none fires.
            if code.any():
                result = np.where((result == 0) & (code > 0), code + before, result)
        return torch.from_numpy(result)

    def by_token(self) -> TokenCode | None:
        """The code of one token, if all of them can tell by its numbers."""
        known = [by_token(condition) for condition in self.conditions]
        codes = [(code, before) for code, before in zip(known, self._before, strict=True) if code is not None]

        def first(token: int, length: int, prompt: int, row: int) -> int:
            for code, before in codes:
                if number := code(token, length, prompt, row):
                    return number + before
            return 0

        return first if len(codes) == len(known) else None


@has_short_cuts
@attrs.frozen(eq=False)
class AllOf(Stop):
    """End at a token at which *first* and *second* both hold; the text hides both if either is hidden."""

    first: StopCondition
    second: StopCondition

    @property
    def conditions(self) -> tuple[StopCondition, StopCondition]:
        """Both."""
        return (self.first, self.second)

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One for each pair."""
        return tuple(
            Finish(f"{a.reason} and {b.reason}", (a.matched, b.matched), a.hide or b.hide)
            for a in self.first.finishes
            for b in self.second.finishes
        )

    def begin(self) -> "AllOf":
        """Both made ready."""
        return AllOf(begin(self.first), begin(self.second))

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        a, b = self.first(scores, history), self.second(scores, history)
        return torch.where((a > 0) & (b > 0), (a - 1) * len(self.second.finishes) + b, 0)

    def by_token(self) -> TokenCode | None:
        """The code of one token, if both can tell by its numbers."""
        first, second, pairs = by_token(self.first), by_token(self.second), len(self.second.finishes)
        if first is None or second is None:
            return None

        def both(token: int, length: int, prompt: int, row: int) -> int:
            a, b = first(token, length, prompt, row), second(token, length, prompt, row)
            return (a - 1) * pairs + b if a and b else 0

        return both


@has_short_cuts
@attrs.frozen(eq=False)
class MaxNewTokens(Stop):
    """End a row after *n* new tokens."""

    n: Tensor = attrs.field(converter=counts)
    """One number for all rows, or one for each; at least 1."""

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One."""
        return (Finish("max_new_tokens"),)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        generated = history.length.numpy() - history.prompt.numpy()[:, None]
        return torch.from_numpy((generated >= limits(self.n, history)).astype(np.int64))

    def by_token(self) -> TokenCode:
        """The code of one token."""
        limit = _limit_of_a_row(self.n)
        return lambda token, length, prompt, row: int(length - prompt >= limit(row))


@has_short_cuts
@attrs.frozen(eq=False)
class MaxLength(Stop):
    """
    End a row when it has *n* tokens, the prompt's among them.

    One token is always chosen, however long the prompt.
    """

    n: Tensor = attrs.field(converter=counts)
    """One number for all rows, or one for each; at least 1."""

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One."""
        return (Finish("max_length"),)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        return torch.from_numpy((history.length.numpy() >= limits(self.n, history)).astype(np.int64))

    def by_token(self) -> TokenCode:
        """The code of one token."""
        limit = _limit_of_a_row(self.n)
        return lambda token, length, prompt, row: int(length >= limit(row))


def limits(n: Tensor, history: History) -> NDArray[np.int64]:
    """One limit for all rows or one for each, ``[1, 1]`` or ``[rows, 1]``."""
    rows = len(history.length)
    if len(n) not in (1, rows):
        raise ValueError(f"'n' must be one number or one for each of the {rows} rows: got {len(n)}")
    return n.numpy()[:, None]


def _limit_of_a_row(n: Tensor) -> Callable[[int], int]:
    """The limit of a row by its number, from one for all rows or one for each."""
    numbers: list[int] = n.tolist()
    one = numbers[0]
    return numbers.__getitem__ if len(numbers) > 1 else lambda row: one


def _ids(value: Any) -> tuple[int, ...]:
    return token_ids("ids", value)


@has_short_cuts
@attrs.frozen(eq=False)
class StopTokens(Stop):
    """End a row with any of the tokens *ids*."""

    ids: tuple[int, ...] = attrs.field(converter=_ids)
    hide: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """Whether the text leaves the token out. The ids keep it."""

    reason: ClassVar[str] = "stop_token"

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One for each token."""
        return tuple(Finish(self.reason, matched=i, hide=self.hide) for i in self.ids)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        hit = newest(history).numpy()[..., None] == np.array(self.ids)
        return torch.from_numpy(np.where(hit.any(axis=-1), hit.argmax(axis=-1) + 1, 0))

    def by_token(self) -> TokenCode:
        """The code of one token."""
        # Of an id that is named twice, the first counts.
        codes = {token: i + 1 for i, token in reversed(list(enumerate(self.ids)))}
        return lambda token, length, prompt, row: codes.get(token, 0)


@has_short_cuts
@attrs.frozen(eq=False)
class EndOfSequence(StopTokens):
    """End a row with the model's own end-of-sequence token, or any of several."""

    reason: ClassVar[str] = "end_of_sequence"
