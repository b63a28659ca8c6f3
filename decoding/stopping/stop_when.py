"""A function as a stop condition."""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from attrs import validators
from torch import Tensor

from ..history import History
from ..protocols import Finish, StopCondition
from ..scores import Scores
from .composition import Stop


def _a_function(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if isinstance(value, type) or not callable(value):
        raise TypeError(f"'function' must be callable as function(history): got {value!r}")
    if isinstance(value, StopCondition):
        raise TypeError(f"'function' must not be a stop condition, which needs no wrapping: got {value!r}")


@attrs.frozen(eq=False)
class StopWhen(Stop):
    """
    End a row where *function* returns True.

    It is called with one new token per row: under speculation once for each column, also for tokens
    that are dropped. It must depend on its argument only.
    """

    function: Callable[[History], Any] = attrs.field(validator=_a_function)
    """
    The tokens so far, the newest included, as a history of width 1, to a bool for each row,
    ``[batch]`` or ``[batch, 1]``, or one for all. Row *b* has the tokens ``history.before(b, 0)``,
    read-only; a row that has ended is shown as it ended.
    """

    reason: str = attrs.field(default="stop_when", validator=validators.instance_of(str))
    """The reason of the finish."""

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One."""
        return (Finish(self.reason),)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        columns = range(history.length.shape[1])
        return torch.stack([self._call(_column(history, column)) for column in columns], dim=1).long()

    def _call(self, history: History) -> Tensor:
        """The function's result for each row, ``[batch]`` bool."""
        result, rows = self.function(history), len(history.length)
        ends = as_bools(result)
        if ends is None or list(ends.shape) not in ([], [rows], [rows, 1]):
            raise TypeError(
                f"'function' must give a bool, or one for each of the {rows} rows: got {result!r}"
            )
        return ends.flatten().expand(rows)


def as_bools(result: Any) -> Tensor | None:
    """A bool, or an array or list of them, as a tensor; None for anything else."""
    try:
        bools = torch.as_tensor(result)
    except (TypeError, ValueError, RuntimeError):
        return None
    return bools if bools.dtype == torch.bool else None


def _column(history: History, column: int) -> History:
    """One column, on its own path."""
    path = column if history.ids.shape[1] > 1 else 0
    ids, length = history.ids[:, path : path + 1], history.length[:, column : column + 1]
    return attrs.evolve(history, ids=ids, length=length)
