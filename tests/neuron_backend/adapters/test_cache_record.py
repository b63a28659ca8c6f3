import numpy as np

from decodekit.neuron_backend.adapters.cache_record import CacheRecord


def enter(record: CacheRecord, start: int, *tokens: int) -> tuple[int, int, int]:
    lost, begin, end = record.enter(np.array([tokens]), np.array([start]))
    return int(lost[0]), int(begin[0]), int(end[0])


def feed(record: CacheRecord, start: int, *tokens: int) -> None:
    enter(record, start, *tokens)
    record.fed(0, start, len(tokens))


def filled(*tokens: int) -> CacheRecord:
    record = CacheRecord(1, 8)
    feed(record, 0, *tokens)
    return record


class TestCacheRecord:
    """Recorded tokens and intact positions."""

    def test_tokens_are_recorded_at_their_positions(self):
        """And the cache holds as many."""
        record = filled(5, 6, 7)

        assert [5, 6, 7, -1] == record.ids[0, :4].tolist()
        assert 3 == record.intact[0]

    def test_another_token_invalidates_those_after_it(self):
        """The same token does not."""
        record = filled(5, 6, 7)

        assert (1, 1, 2) == enter(record, 1, 6)
        assert [5, 6, 7] == record.ids[0, :3].tolist()
        assert (1, 1, 2) == enter(record, 1, 9)
        assert [5, 9, -1] == record.ids[0, :3].tolist()
        assert 1 == record.intact[0]

    def test_padding_changes_nothing(self):
        """Before, after and between tokens; a row of padding is idle."""
        record = filled(5, 6, 7)

        assert (1, 1, 4) == enter(record, 0, -1, 6, -1, 8)
        assert [5, 6, 7, 8] == record.ids[0, :4].tolist()
        assert (0, 0, 0) == enter(record, 3, -1, -1)

    def test_overwritten_tokens_are_fed_again(self):
        """From the first token on that the cache does not hold."""
        record = filled(5, 6, 7, 8)
        record.intact[0] = 2

        assert (2, 4, 5) == enter(record, 4, 9)
        record.fed(0, 2, 3)
        assert 5 == record.intact[0]

    def test_a_prefix_that_was_never_fed_cannot_be_lost(self):
        """Feeding may start beyond position 0; the positions before it are not fed."""
        record = CacheRecord(1, 8)

        assert (4, 4, 5) == enter(record, 4, 9)
        assert 4 == record.intact[0]

    def test_a_window_holds_recorded_tokens_and_zeros_after_them(self):
        """It covers every position once."""
        record = filled(5, 6, 7)

        assert [6, 7, 0, 0] == record.window(0, 1, 4).tolist()
        assert [5, 6] == record.prefix(0, 2).tolist()
        assert [5, 6, 7] == record.prefix(0, 8).tolist()
        assert [0] == CacheRecord(1, 8).prefix(0, 8).tolist()

    def test_tokens_fed_after_a_lost_token_do_not_count(self):
        """They were computed over other content."""
        record = filled(5, 6, 7, 8)
        record.intact[0] = 1

        record.fed(0, 2, 2)

        assert 1 == record.intact[0]
