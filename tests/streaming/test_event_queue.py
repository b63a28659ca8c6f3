"""Event queue: order, capacity and merging."""

import threading

import pytest
from hypothesis import given, strategies as st

from decodekit.decoding import Event, Finish, TokenLogprob
from decodekit.streaming import ClosedError
from decodekit.streaming.event_queue import EventQueue, merged

PATIENCE = 10.0
"""Seconds after which a thread counts as hanging."""


@st.composite
def generations(draw: st.DrawFn) -> list[Event]:
    """Events of up to three rows; with text or without, with log-probabilities or without."""
    has_text, has_logprobs = draw(st.booleans()), draw(st.booleans())
    rows = draw(st.lists(st.integers(0, 2), max_size=30))
    events = []
    for i, row in enumerate(rows):
        ids = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
        last = row not in rows[i + 1 :]
        events.append(
            Event(
                row,
                ids,
                draw(st.text(max_size=3)) if has_text else None,
                Finish("max_new_tokens") if last else None,
                tuple(TokenLogprob(token, -0.5, 1) for token in ids) if has_logprobs else None,
            )
        )
    return events


def by_row(events: list[Event]) -> dict[int, Event]:
    """What each row says in all."""
    return {row: merged([e for e in events if e.row == row]) for row in {e.row for e in events}}


class TestMerged:
    def test_says_what_its_parts_say(self) -> None:
        """Ids, text, log-probabilities and the ending."""
        one, other = TokenLogprob(5, -0.1, 1), TokenLogprob(6, -0.2, 2)
        parts = [Event(1, (5,), "a", None, (one,)), Event(1, (6,), "b", Finish("max_time"), (other,))]

        assert Event(1, (5, 6), "ab", Finish("max_time"), (one, other)) == merged(parts)

    def test_what_is_not_set_stays_so(self) -> None:
        """Without a tokenizer there is no text, not an empty one."""
        assert Event(0, (5, 6)) == merged([Event(0, (5,)), Event(0, (6,))])
        assert Event(0, (), "", None, ()) == merged([Event(0, (), "", None, ())] * 2)


class TestMerge:
    @given(events=generations(), capacity=st.integers(1, 4), reads=st.lists(st.booleans(), max_size=30))
    def test_nothing_is_lost(self, events: list[Event], capacity: int, reads: list[bool]) -> None:
        """Whenever it is read, each row says the same; no more wait than the capacity and one a row."""
        queue, read = EventQueue(capacity, "merge"), []
        for i, event in enumerate(events):
            queue.put(event)

            assert len(queue._waiting) <= capacity + 3

            if i < len(reads) and reads[i]:
                read.append(queue.take(PATIENCE))
        queue.end()
        while (event := queue.take(PATIENCE)) is not None:
            read.append(event)

        assert by_row(events) == by_row(read)

    def test_joins_the_last_of_its_row(self) -> None:
        """Other rows keep their places."""
        queue = EventQueue(2, "merge")
        for event in (Event(0, (1,)), Event(1, (2,)), Event(0, (3,)), Event(2, (4,)), Event(1, (5,))):
            queue.put(event)
        queue.end()

        read = [queue.take(PATIENCE) for _ in range(3)]
        assert [Event(0, (1, 3)), Event(1, (2, 5)), Event(2, (4,))] == read

    def test_is_for_those_who_are_behind(self) -> None:
        """While there is room, events come as they were."""
        queue = EventQueue(2, "merge")
        for event in (Event(0, (1,)), Event(0, (2,)), Event(0, (3,))):
            queue.put(event)

        assert Event(0, (1,)) == queue.take(PATIENCE)
        assert Event(0, (2, 3)) == queue.take(PATIENCE)


class TestWait:
    @given(events=generations(), capacity=st.integers(1, 4))
    def test_events_come_as_they_were(self, events: list[Event], capacity: int) -> None:
        """In order, none merged, none lost, however little room there is."""
        queue, read = EventQueue(capacity, "wait"), []

        def fill() -> None:
            for event in events:
                queue.put(event)
            queue.end()

        thread = threading.Thread(target=fill)
        thread.start()
        while (event := queue.take(PATIENCE)) is not None:
            read.append(event)
        thread.join(PATIENCE)

        assert events == read

    def test_closing_from_within_is_possible(self) -> None:
        """As a collection of garbage may in any line of put(): what comes after is not read."""
        queue = EventQueue(1, "wait")
        with queue._change:
            queue.close()
            queue._add(Event(0, (1,)))

        assert queue.take(PATIENCE) is None


class TestBegin:
    def test_serves_one_generation(self) -> None:
        """Events of two would be mixed."""
        queue = EventQueue(1, "wait")
        queue.begin()
        with pytest.raises(RuntimeError, match="make a new one"):
            queue.begin()

    def test_is_refused_without_a_reader(self) -> None:
        """Nothing need be decoded."""
        queue = EventQueue(1, "wait")
        queue.close()
        with pytest.raises(ClosedError):
            queue.begin()


class TestReaderIsGone:
    """When the main thread has ended, and the one that read."""

    def test_a_late_reader_does_not_take_it_for_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What waits is read, and then an error that says what happened."""
        queue = EventQueue(1, "wait")
        queue.put(Event(0, (1,)))
        queue._reader_is_gone = lambda: True
        with pytest.raises(ClosedError, match="no reader is left"):
            queue.put(Event(0, (2,)))
        queue.end()

        assert Event(0, (1,)) == queue.take(PATIENCE)
        with pytest.raises(RuntimeError, match="ended before the events"):
            queue.take(PATIENCE)
        assert queue.take(PATIENCE) is None

    def test_another_thread_may_take_over(self) -> None:
        """While the main thread lives, one that ended is no reason to stop."""
        made: list[EventQueue] = []
        thread = threading.Thread(target=lambda: made.append(EventQueue(1, "wait")))
        thread.start()
        thread.join(PATIENCE)
        made[0].put(Event(0, (1,)))

        assert Event(0, (1,)) == made[0].take(PATIENCE)
