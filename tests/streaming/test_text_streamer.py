"""Printing the text of one row."""

import contextlib
import io

import pytest

from decodekit.decoding.events import Event
from decodekit.streaming import TextStreamer


class Recorded(io.StringIO):
    """Counts its flushes."""

    flushes = 0

    def flush(self) -> None:
        super().flush()
        self.flushes += 1


class TestTextStreamer:
    """One text in one place."""

    def test_text_is_printed_as_it_is(self) -> None:
        """Pieces adjoin; a newline follows the last."""
        file = io.StringIO()
        streamer = TextStreamer(file)
        for text in ("He", "", "llo\n", " 👩‍👩‍👧"):
            streamer.put_event(Event(0, (1,), text))

        assert file.getvalue() == "Hello\n 👩‍👩‍👧"

        streamer.end()

        assert file.getvalue() == "Hello\n 👩‍👩‍👧\n"

    def test_standard_output_is_looked_up_when_printing(self) -> None:
        """A streamer that was made before the redirection follows it."""
        streamer, out = TextStreamer(), io.StringIO()
        with contextlib.redirect_stdout(out):
            streamer.put_event(Event(0, (1,), "hi"))
            streamer.end()

        assert out.getvalue() == "hi\n"

    def test_each_piece_is_flushed(self) -> None:
        """A reader sees it at once."""
        file = Recorded()
        streamer = TextStreamer(file)
        streamer.put_event(Event(0, (1,), "a"))

        assert file.flushes == 1

        streamer.end()

        assert file.flushes == 2

    def test_other_rows_are_refused(self) -> None:
        """Two texts in one place cannot be read; the error says what to do instead."""
        file = io.StringIO()
        with pytest.raises(ValueError, match=r"one row.* row 1: .*generator\.stream\(prompts\).*event\.row"):
            TextStreamer(file).put_event(Event(1, (1,), "a"))

        assert file.getvalue() == ""

    def test_events_without_text_are_refused(self) -> None:
        """They come of a generator without a tokenizer."""
        with pytest.raises(ValueError, match="pass tokenizer= to the Generator"):
            TextStreamer(io.StringIO()).put_event(Event(0, (1,), None))
