"""Counts of the forwards that feed a decoder."""

from operator import add, sub
from typing import NamedTuple


class FeedCounts(NamedTuple):
    """What a feeder has fed so far, or within some time."""

    forwards: int = 0
    """Forwards; one of each decoder, where there are several, counts once."""

    columns: int = 0
    """Columns of all forwards, of all rows."""

    tokens: int = 0
    """Those with a token; the others were padding."""

    row_columns: int = 0
    """Columns of forwards of one row; of several decoders, those of the one with the most."""

    row_tokens: int = 0
    """Those with a token."""

    row_seconds: float = 0.0
    """Time of forwards of one row, and of copies of rows."""

    def plus(self, more: "FeedCounts") -> "FeedCounts":
        """The sum of both."""
        return FeedCounts(*map(add, self, more))

    def since(self, before: "FeedCounts") -> "FeedCounts":
        """The difference to earlier counts of the same feeder."""
        return FeedCounts(*map(sub, self, before))
