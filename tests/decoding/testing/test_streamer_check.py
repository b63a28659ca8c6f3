"""The contract checks of a streamer."""

import asyncio
import io
import threading

import pytest

from decodekit.streaming import (
    AsyncEventIterator,
    AsyncTextIterator,
    BatchDisplay,
    Callback,
    ClosedError,
    EventIterator,
    FanOut,
    JsonLines,
    LatencyMeter,
    TextIterator,
    TextStreamer,
)
from decodekit.testing import check_streamer


class HuggingFace:
    """``put`` and ``end``."""

    def put(self, value):
        assert value.numel() or value.ndim == 2

    def end(self):
        pass


STREAMERS = {
    "text": lambda: TextStreamer(io.StringIO()),
    "display": lambda: BatchDisplay(io.StringIO()),
    "callback": lambda: Callback(lambda event: None),
    "events": EventIterator,
    "texts": TextIterator,
    "fan-out": lambda: FanOut(LatencyMeter(), Callback(lambda event: None)),
    "json": lambda: JsonLines(io.StringIO()),
    "latency": LatencyMeter,
}
OF_TEXT = {"text", "display", "texts"}


class Wrong:
    """A streamer of one fault."""

    def __init__(self, fault):
        self.fault = fault
        self.ended = False
        self.newest = None

    def put_event(self, event):
        if self.fault == "event":
            object.__setattr__(event, "ids", (0,))
        if self.fault == "text":
            event.text.strip()
        if self.fault == "no ids":
            event.ids[0]
        if self.fault == "blocks":
            threading.Event().wait()
        if self.fault == "again" and self.ended:
            raise ValueError("ended")
        self.newest = event

    def end(self):
        self.ended = True
        if self.fault == "end":
            raise OSError("broken pipe")
        if self.fault == "closed at end":
            raise ClosedError
        if self.fault == "empty":
            print(self.newest.ids)

    def fail(self, error):
        if self.fault == "fail":
            raise error


WRONG = {
    "event": "must not change an event, .* a complete generation, fed Event.* came: Event",
    "text": "must take every event.*text=None.*came: AttributeError",
    "no ids": r"must take every event.*ids=\(\).*came: IndexError",
    "end": r"must not raise at the end: a complete generation, fed end\(\); came: OSError",
    "empty": r"must not raise at the end: a generation without events, fed end\(\)",
    "fail": r"must not raise at the end: a generation that fails, fed fail\(RuntimeError",
}


class TestCheckStreamer:
    @pytest.mark.parametrize("name", STREAMERS)
    def test_passes_every_streamer(self, name) -> None:
        """For several rows, where it takes them."""
        rows = 1 if name in {"text", "texts"} else 3
        check_streamer(STREAMERS[name], rows=rows, text_required=name in OF_TEXT)

    @pytest.mark.parametrize("kind", [AsyncEventIterator, AsyncTextIterator])
    def test_passes_iterators_of_tasks(self, kind) -> None:
        """Made in an event loop, fed from a thread."""

        async def check() -> None:
            made = [kind() for _ in range(9)]
            await asyncio.to_thread(check_streamer, made.pop, text_required=kind is AsyncTextIterator)

        asyncio.run(check())

    def test_passes_hugging_face_streamers(self) -> None:
        """They get ids, and no event without any."""
        check_streamer(HuggingFace)

    def test_passes_a_streamer_that_closes(self) -> None:
        """Its consumer has gone."""

        def close(event):
            raise ClosedError

        check_streamer(lambda: Callback(close))

    @pytest.mark.parametrize(("fault", "message"), WRONG.items(), ids=WRONG.keys())
    def test_finds_a_broken_rule(self, fault, message) -> None:
        """And says what was fed, what came, and the rule."""
        with pytest.raises(AssertionError, match=rf"(?s){message}"):
            check_streamer(lambda: Wrong(fault))

    def test_finds_a_streamer_that_blocks(self) -> None:
        """Whose consumer never comes."""
        with pytest.raises(AssertionError, match=r"must not block the generation: .* fed Event\("):
            check_streamer(lambda: Wrong("blocks"), block_seconds=0.2)

    def test_finds_a_streamer_of_one_generation(self) -> None:
        """If it is to take two."""
        check_streamer(lambda: Wrong("again"))
        check_streamer(LatencyMeter, generations=2)
        with pytest.raises(AssertionError, match="number 2, fed Event"):
            check_streamer(lambda: Wrong("again"), generations=2)

    def test_refuses_wrong_arguments(self) -> None:
        """Before anything is told."""
        with pytest.raises(TypeError, match="'make' must make a streamer"):
            check_streamer(3)
        with pytest.raises(TypeError, match="'streamer' must have put_event"):
            check_streamer(object)
        with pytest.raises(ValueError, match="'rows' must be a whole number >= 1"):
            check_streamer(LatencyMeter, rows=0)
