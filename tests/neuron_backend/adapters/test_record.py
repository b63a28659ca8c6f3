import numpy as np

from decodekit.neuron_backend.adapters.record import Record


def enter(record: Record, start: int, *tokens: int) -> tuple[int, int, int]:
    lost, begin, end = record.enter(np.array([tokens]), np.array([start]))
    return int(lost[0]), int(begin[0]), int(end[0])


def feed(record: Record, start: int, *tokens: int) -> None:
    enter(record, start, *tokens)
    record.fed(0, start, len(tokens))


def filled(*tokens: int) -> Record:
    record = Record(1, 8)
    feed(record, 0, *tokens)
    return record


class TestRecord:
    """What stands where."""

    def test_tokens_stand_where_they_were_fed(self):
        """And the cache holds as many."""
        record = filled(5, 6, 7)

        assert [5, 6, 7, -1] == record.ids[0, :4].tolist()
        assert 3 == record.intact[0]

    def test_another_token_makes_worthless_what_stood_behind_it(self):
        """The same one does not."""
        record = filled(5, 6, 7)

        assert (1, 1, 2) == enter(record, 1, 6)
        assert [5, 6, 7] == record.ids[0, :3].tolist()
        assert (1, 1, 2) == enter(record, 1, 9)
        assert [5, 9, -1] == record.ids[0, :3].tolist()
        assert 1 == record.intact[0]

    def test_padding_stands_for_nothing(self):
        """Before, behind and between tokens; a row of it is idle."""
        record = filled(5, 6, 7)

        assert (1, 1, 4) == enter(record, 0, -1, 6, -1, 8)
        assert [5, 6, 7, 8] == record.ids[0, :4].tolist()
        assert (0, 0, 0) == enter(record, 3, -1, -1)

    def test_what_was_wiped_out_is_fed_again(self):
        """From the first token on that the cache does not hold."""
        record = filled(5, 6, 7, 8)
        record.intact[0] = 2

        assert (2, 4, 5) == enter(record, 4, 9)
        record.fed(0, 2, 3)
        assert 5 == record.intact[0]

    def test_a_prefix_that_was_never_fed_cannot_be_lost(self):
        """Somebody feeds positions beyond: what stands before them is his business."""
        record = Record(1, 8)

        assert (4, 4, 5) == enter(record, 4, 9)
        assert 4 == record.intact[0]

    def test_a_window_holds_what_stands_there_and_any_token_behind(self):
        """It covers every position once."""
        record = filled(5, 6, 7)

        assert [6, 7, 0, 0] == record.window(0, 1, 4).tolist()
        assert [5, 6] == record.prefix(0, 2).tolist()
        assert [5, 6, 7] == record.prefix(0, 8).tolist()
        assert [0] == Record(1, 8).prefix(0, 8).tolist()

    def test_what_is_fed_behind_a_lost_token_does_not_count(self):
        """It was computed over something else."""
        record = filled(5, 6, 7, 8)
        record.intact[0] = 1

        record.fed(0, 2, 2)

        assert 1 == record.intact[0]
