"""Text from one thread to another: complete, without deadlocks."""

import math
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from decodekit.decoding.results.events import Event
from decodekit.decoding.results.streamers import forward
from decodekit.streaming import ClosedError, TextIterator

PATIENCE = 10.0
"""Seconds after which a thread counts as hanging."""


class Thread(threading.Thread):
    """A thread that keeps its exception."""

    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._run = run

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error

    def finish(self) -> BaseException | None:
        self.join(PATIENCE)

        assert not self.is_alive()
        return self.error


@contextmanager
def running(run: Callable[[], Any]) -> Iterator[Thread]:
    thread = Thread(run)
    thread.start()
    yield thread
    thread.finish()


def generating(pieces: TextIterator, texts: Iterator[str]) -> Callable[[], Any]:
    """Put *texts* into the streamer, as a generator does."""

    def generation() -> Iterator[Event]:
        for text in texts:
            yield Event(0, (1,), text)

    return lambda: list(forward(generation(), pieces, [[7]]))


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class TestReading:
    """What the reader gets."""

    @pytest.mark.parametrize("capacity", [1, 3, 64])
    def test_pieces_come_in_order_and_complete(self, capacity: int) -> None:
        """Whatever the capacity; pieces without text are no pieces."""
        texts = [str(i) if i % 7 else "" for i in range(500)]
        pieces = TextIterator(timeout=PATIENCE, capacity=capacity)
        with running(generating(pieces, iter(texts))):
            assert list(pieces) == [text for text in texts if text]

    def test_after_the_end_there_is_nothing(self) -> None:
        """Iterating again stops at once."""
        pieces = TextIterator(timeout=PATIENCE)
        with running(generating(pieces, iter("ab"))):
            assert list(pieces) == ["a", "b"]
        assert list(pieces) == []
        assert next(pieces, None) is None

    def test_a_piece_is_read_before_the_next_is_generated(self) -> None:
        """Nothing waits for the end."""
        requested = threading.Event()

        def texts() -> Iterator[str]:
            yield "first"
            assert requested.wait(PATIENCE)
            yield "second"

        pieces = TextIterator(timeout=PATIENCE)
        with running(generating(pieces, texts())) as thread:
            assert next(pieces) == "first"
            requested.set()
            assert list(pieces) == ["second"]

        assert thread.error is None

    def test_waiting_is_limited_by_the_timeout(self) -> None:
        """The error names it; the pieces that come later can still be read."""
        pieces = TextIterator(timeout=0.02)
        with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
            next(pieces)
        pieces.put_event(Event(0, (1,), "late"))

        assert next(pieces) == "late"

    @pytest.mark.parametrize(
        "options",
        [
            *({"timeout": 0}, {"timeout": -1.0}, {"timeout": True}, {"timeout": "5"}),
            # No clock of the operating system's waits for as long.
            *({"timeout": math.inf}, {"timeout": math.nan}),
            *({"capacity": 0}, {"when_full": "drop"}),
        ],
        ids=str,
    )
    def test_senseless_options_are_refused(self, options: dict[str, Any]) -> None:
        """At construction."""
        ((name, value),) = options.items()
        with pytest.raises((TypeError, ValueError), match=rf"^'{name}' must be [^:]+: (got )?{value!r}"):
            TextIterator(**options)


class TestBackPressure:
    """What a slow reader does to the generation."""

    def test_the_generation_waits_for_the_reader(self) -> None:
        """It is never ahead by more than the capacity and the piece being put."""
        generated: list[int] = []

        def texts() -> Iterator[str]:
            for i in range(20):
                generated.append(i)
                yield str(i)

        pieces = TextIterator(timeout=PATIENCE, capacity=3)
        with running(generating(pieces, texts())):
            for read in range(20):
                eventually(lambda read=read: len(generated) >= min(read + 4, 20))
                time.sleep(0.002)

                assert len(generated) <= read + 4
                assert next(pieces) == str(read)


class TestErrors:
    """What goes wrong on the other side."""

    def test_the_readers_error_is_the_generations(self) -> None:
        """After the preceding pieces, with the original traceback."""

        def a_broken_forward() -> Iterator[str]:
            yield "fine"
            raise RuntimeError("out of device memory")

        pieces, read = TextIterator(timeout=PATIENCE), []
        with (
            running(generating(pieces, a_broken_forward())) as thread,
            pytest.raises(RuntimeError, match="out of device memory") as caught,
        ):
            read += pieces

        assert read == ["fine"]
        assert thread.error is caught.value
        assert "a_broken_forward" in "".join(traceback.format_exception(caught.value))
        assert list(pieces) == []

    def test_pieces_before_the_error_are_read_first(self) -> None:
        """They are final."""
        pieces = TextIterator(timeout=PATIENCE)
        pieces.put_event(Event(0, (1,), "a"))
        pieces.fail(KeyError("b"))

        assert next(pieces) == "a"
        with pytest.raises(KeyError):
            next(pieces)
        assert next(pieces, None) is None

    @pytest.mark.parametrize(
        ("event", "message"),
        [(Event(1, (1,), "a"), r"event of row 1: .*event\.row"), (Event(0, (1,), None), "pass tokenizer=")],
        ids=["row", "no-text"],
    )
    def test_events_that_have_no_place_raise_on_both_sides(self, event: Event, message: str) -> None:
        """Other rows, and events without text: one text of one row is read here."""
        pieces = TextIterator(timeout=PATIENCE)
        with (
            running(lambda: list(forward(iter([event]), pieces, [[7]]))) as thread,
            pytest.raises(ValueError, match=message),
        ):
            next(pieces)

        assert isinstance(thread.error, ValueError)

    def test_one_iterator_serves_one_generation(self) -> None:
        """A second one is refused: its pieces would never be read."""
        pieces = TextIterator(timeout=PATIENCE)
        pieces.end()
        with pytest.raises(RuntimeError, match="make a new one"):
            pieces.put_event(Event(0, (1,), "a"))


class TestClosing:
    """Leaving early, on either side."""

    def test_leaving_the_block_stops_the_generation(self) -> None:
        """Within one step, though it would never end."""
        generated: list[str] = []

        def texts() -> Iterator[str]:
            while True:
                generated.append("a")
                yield "a"

        with TextIterator(timeout=PATIENCE, capacity=2) as pieces:
            thread = Thread(generating(pieces, texts()))
            thread.start()
            for _ in zip(range(5), pieces, strict=False):
                pass
        error = thread.finish()

        assert error is None  # a closed reader is not an error of the generation
        assert len(generated) <= 5 + 2 + 2
        assert list(pieces) == []

    def test_a_blocked_generation_is_released(self) -> None:
        """It waits for room that is never made."""
        pieces = TextIterator(timeout=PATIENCE, capacity=1)
        pieces.put_event(Event(0, (1,), "a"))
        with running(lambda: pieces.put_event(Event(0, (1,), "b"))) as thread:
            thread.join(0.05)

            assert thread.is_alive()
            pieces.close()

        assert isinstance(thread.error, ClosedError)

    def test_even_an_event_without_text_is_refused(self) -> None:
        """The generation need not reach the next piece to stop."""
        pieces = TextIterator()
        pieces.close()
        with pytest.raises(ClosedError, match="the reader closed"):
            pieces.put_event(Event(0, (1,), ""))

    def test_a_reader_that_waits_is_released(self) -> None:
        """By a third thread."""
        pieces = TextIterator()
        with running(lambda: list(pieces)) as thread:
            thread.join(0.02)
            pieces.close()

        assert thread.error is None

    def test_a_reader_that_waits_is_told_of_the_end(self) -> None:
        """However long it was ready to wait: of an end or of an error."""
        ended, failed, error = TextIterator(), TextIterator(), KeyError("late")
        with running(lambda: list(ended)) as thread:
            thread.join(0.02)
            ended.end()

        assert thread.error is None

        with running(lambda: list(failed)) as thread:
            thread.join(0.02)
            failed.fail(error)

        assert thread.error is error

    def test_an_error_in_the_block_is_not_replaced(self) -> None:
        """And stops the generation all the same."""

        def read(pieces: TextIterator) -> None:
            with pieces:
                next(pieces)
                raise ZeroDivisionError

        pieces = TextIterator(timeout=PATIENCE)
        endless = iter(lambda: "a", None)
        with running(generating(pieces, endless)) as thread, pytest.raises(ZeroDivisionError):
            read(pieces)

        assert thread.error is None

    def test_closing_twice_or_after_the_end_does_nothing(self) -> None:
        """As files do."""
        pieces = TextIterator(timeout=PATIENCE)
        pieces.put_event(Event(0, (1,), "a"))
        pieces.end()

        assert list(pieces) == ["a"]
        pieces.close()
        pieces.close()
        pieces.end()
        pieces.fail(KeyError())

        assert list(pieces) == []

    def test_the_end_never_waits_for_room(self) -> None:
        """A full queue does not keep the generation's thread from finishing."""
        pieces = TextIterator(timeout=PATIENCE, capacity=1)
        with running(generating(pieces, iter("a"))) as thread:
            assert thread.finish() is None

        assert list(pieces) == ["a"]

    def test_a_consumer_that_closes_the_events_releases_the_reader(self) -> None:
        """The consumer of the events may stop the generation too."""
        pieces = TextIterator(timeout=PATIENCE)
        events = forward(iter([Event(0, (1,), "a"), Event(0, (1,), "b")]), pieces, [[7]])
        next(events)
        events.close()  # type: ignore[attr-defined]

        assert list(pieces) == ["a"]
