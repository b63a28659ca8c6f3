"""What a running generation tells the outside."""

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
