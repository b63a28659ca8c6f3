"""Events of a running generation."""

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
    """Row of the result: of the prompt, or with several samples ``prompt * num_samples + sample``."""

    ids: tuple[int, ...]
    """The new ids; none where the row ended between two steps or had no possible token."""

    text: str | None = None
    """The text that became final; it may lag behind the ids. None without a tokenizer."""

    finish: Finish | None = None
    """Why the row ended; set on its last event."""

    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each of the ids; None unless requested."""

    @property
    def finish_reason(self) -> str | None:
        """
        The reason of :attr:`finish`; None while the row goes on.

        >>> Event(0, (5,)).finish_reason, Event(0, (6,), finish=Finish("max_new_tokens")).finish_reason
        (None, 'max_new_tokens')
        """
        return None if self.finish is None else self.finish.reason

    def as_dict(self) -> dict[str, Any]:
        """
        The event as a JSON object, without fields that are not set.

        A log-probability of ``-inf`` becomes None: JSON has no infinity.

        >>> Event(0, (5, 6), "Hello", Finish("stop_string", "END", hide=True)).as_dict()
        {'row': 0, 'ids': [5, 6], 'text': 'Hello', 'finish': {'reason': 'stop_string', 'matched': 'END'}}
        """
        fields: dict[str, Any] = {"row": self.row, "ids": list(self.ids)}
        if self.text is not None:
            fields["text"] = self.text
        if self.finish is not None:
            matched = {} if self.finish.matched is None else {"matched": self.finish.matched}
            fields["finish"] = {"reason": self.finish.reason, **matched}
        if self.logprobs is not None:
            fields["logprobs"] = [_logprob_as_dict(logprob) for logprob in self.logprobs]
        return fields


def _logprob_as_dict(one: TokenLogprob) -> dict[str, Any]:
    top = [[token, _finite(logprob)] for token, logprob in one.top]
    return {"id": one.id, "logprob": _finite(one.logprob), "rank": one.rank, "top": top}


def _finite(logprob: float) -> float | None:
    return logprob if math.isfinite(logprob) else None


@attrs.define(eq=False)
class StepOutput:
    """The result of one step for one row. Treat as immutable (not frozen, for speed)."""

    row: int
    ids: tuple[int, ...]
    finish: Finish | None
    logprobs: tuple[TokenLogprob, ...] | None = None

    def event(self, text: str | None) -> Event:
        """The public event."""
        return Event(self.row, self.ids, text, self.finish, self.logprobs)


MAX_LENGTH = Finish("max_length")
"""The finish of a row whose cache is full."""

EventStream: TypeAlias = Generator[Event, None, None]
"""Events as they occur; ``close()`` ends the generation."""

AsyncEventStream: TypeAlias = AsyncGenerator[Event, None]
"""The asynchronous counterpart, with ``aclose()``."""
