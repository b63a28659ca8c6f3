"""Counts of forwards."""

from decodekit.decoding.feed_counts import FeedCounts


def test_sums_and_differences() -> None:
    """Number by number."""
    before = FeedCounts(1, 8, 5, row_columns=4, row_tokens=3, row_seconds=0.5)
    more = FeedCounts(forwards=2, columns=16, tokens=9, row_seconds=0.25)
    after = before.plus(more)

    assert FeedCounts(3, 24, 14, 4, 3, 0.75) == after
    assert more == after.since(before)
