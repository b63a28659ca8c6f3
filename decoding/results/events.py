"""What a running generation tells the outside."""

import math
from collections.abc import AsyncGenerator, Generator
from typing import Any, TypeAlias

import attrs

from ..protocols import Finish
from .logprobs import TokenLogprob


@attrs.frozen
class Event:
    """New tokens of one row."""

    row: int
    """Index of the prompt."""

    ids: tuple[int, ...]
    """The new ids, one or a burst."""

    text: str | None = None
    """The text that has become final; it may lag behind the ids. None without a tokenizer."""

    finish: Finish | None = None
    """Why the row ended; set on its last event."""

    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each of the ids; None unless they were asked for."""

    def as_dict(self) -> dict[str, Any]:
        """
        The same in what JSON knows, without what is not set.

        A log-probability of ``-inf`` is None: JSON has no infinity.

        >>> Event(0, (5, 6), "Hello", Finish("stop_string", "END", hide=True)).as_dict()
        {'row': 0, 'ids': [5, 6], 'text': 'Hello', 'finish': {'reason': 'stop_string', 'matched': 'END'}}
        """
        said: dict[str, Any] = {"row": self.row, "ids": list(self.ids)}
        if self.text is not None:
            said["text"] = self.text
        if self.finish is not None:
            matched = {} if self.finish.matched is None else {"matched": self.finish.matched}
            said["finish"] = {"reason": self.finish.reason, **matched}
        if self.logprobs is not None:
            said["logprobs"] = [_logprob_as_dict(logprob) for logprob in self.logprobs]
        return said


def _logprob_as_dict(one: TokenLogprob) -> dict[str, Any]:
    top = [[token, _finite(logprob)] for token, logprob in one.top]
    return {"id": one.id, "logprob": _finite(one.logprob), "rank": one.rank, "top": top}


def _finite(logprob: float) -> float | None:
    return logprob if math.isfinite(logprob) else None


@attrs.define(eq=False)
class StepOutput:
    """What one round gave to one row. Treat as immutable (not frozen, for speed)."""

    row: int
    ids: tuple[int, ...]
    finish: Finish | None
    logprobs: tuple[TokenLogprob, ...] | None = None

    def event(self, text: str | None) -> Event:
        """What the outside is told of it."""
        return Event(self.row, self.ids, text, self.finish, self.logprobs)


MAX_LENGTH = Finish("max_length")
"""The row's last token has no position left to be fed at."""

EventStream: TypeAlias = Generator[Event, None, None]
"""Events as they happen; ``close()`` ends the decoding."""

AsyncEventStream: TypeAlias = AsyncGenerator[Event, None]
"""The same for an event loop, with ``aclose()``."""
