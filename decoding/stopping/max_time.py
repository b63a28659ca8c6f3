"""A time limit."""

import time
from typing import Any, ClassVar, Literal

import attrs
import torch
from torch import Tensor

from ..history import History
from ..protocols import Finish
from ..scores import Scores
from ..validation import as_real, one_real
from .composition import Stop


def _a_start(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value not in ("call", "first_token"):
        raise ValueError(f"'since' must be 'call' or 'first_token': got {value!r}")


@attrs.frozen(eq=False)
class MaxTime(Stop):
    """
    End a row *seconds* after the call of the generator or of its ``stream``, or after its first token.

    It reads a clock, so texts are not reproducible; and it is refused where the decoder is divided over
    processes, which would end at different tokens.
    """

    decides_by_time: ClassVar[bool] = True

    seconds: float = attrs.field(converter=as_real, validator=one_real("> 0", lambda s: s > 0))
    """At least one token is sampled, however short the time."""

    since: Literal["call", "first_token"] = attrs.field(default="call", validator=_a_start)
    """
    When the clock starts: with the call, so that prefill counts, or for each row when its first token
    has been sampled.
    """

    _call: float = attrs.field(init=False, repr=False, factory=lambda: time.monotonic())
    _first_token: dict[int, float] = attrs.field(init=False, repr=False, factory=dict)

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One."""
        return (Finish("max_time"),)

    def begin(self) -> "MaxTime":
        """A copy whose clock starts now."""
        return MaxTime(self.seconds, self.since)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        now = time.monotonic()
        over = [now - self._start(row, now) >= self.seconds for row in range(len(history.length))]
        return torch.tensor(over).long()[:, None].expand(history.length.shape)

    def _start(self, row: int, now: float) -> float:
        return self._call if self.since == "call" else self._first_token.setdefault(row, now)
