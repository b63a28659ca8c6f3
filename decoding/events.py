"""What a running generation tells the outside."""

from collections.abc import AsyncGenerator, Generator
from typing import TypeAlias

import attrs

from .protocols import Ending


@attrs.frozen
class Event:
    """New tokens of one row."""

    row: int
    """Index of the prompt."""

    ids: tuple[int, ...]
    """The new ids, one or a burst."""

    text: str | None = None
    """The text that has become final; it may lag behind the ids. None without a tokenizer."""

    ending: Ending | None = None
    """Why the row ended; set on its last event."""


EventStream: TypeAlias = Generator[Event, None, None]
"""Events as they happen; ``close()`` ends the decoding."""

AsyncEventStream: TypeAlias = AsyncGenerator[Event, None]
"""The same for an event loop, with ``aclose()``."""
