"""Printed text of one row."""

import contextlib
import io

import pytest
import torch

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.decoding.results.events import Event
from decodekit.streaming import AsyncTextIterator, TextIterator, TextStreamer
from decodekit.testing import ScriptedDecoder

from .scripted_events import TEXTS, events_of
from .terminal import terminal


class Recorded(io.StringIO):
    """Counts its flushes."""

    flushes = 0

    def flush(self) -> None:
        super().flush()
        self.flushes += 1


class TestTextStreamer:
    """One text in one place."""

    def test_a_character_that_the_encoding_lacks(self) -> None:
        """It ends no generation."""
        file = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
        TextStreamer(file).put_event(Event(0, (1,), "né 👩"))
        file.seek(0)

        assert "né ?" == file.read()

    def test_a_file_with_an_error_handler_of_its_own(self) -> None:
        """It is not overridden."""
        file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
        TextStreamer(file).put_event(Event(0, (1,), "né"))
        file.seek(0)

        assert "n\\xe9" == file.read()

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

    def test_several_prompts_are_refused_before_the_first_token(self) -> None:
        """By everything that shows one text."""
        decoder = ScriptedDecoder(torch.eye(3), batch_size=2)
        generator = Generator(decoder, stop=MaxNewTokens(2))
        for streamer in (TextStreamer(io.StringIO()), TextIterator(), AsyncTextIterator()):
            with pytest.raises(ValueError, match="shows one row, and there are 2: for several prompts"):
                generator([[1], [2]], streamer=streamer)

        assert [] == decoder.forwards

    def test_events_without_text_are_refused(self) -> None:
        """They come of a generator without a tokenizer."""
        with pytest.raises(ValueError, match="pass tokenizer= to the Generator"):
            TextStreamer(io.StringIO()).put_event(Event(0, (1,), None))


class TestInATerminal:
    """A real pseudo-terminal."""

    @pytest.mark.parametrize("per_event", range(1, 9))
    def test_the_screen_shows_the_text(self, per_event: int) -> None:
        """At once for any number of tokens per event, with the cursor on the next line at the end."""
        for text in TEXTS:
            with terminal(columns=60) as one:
                streamer, told = TextStreamer(one.file), ""
                for event in events_of([text], per_event):
                    streamer.put_event(event)
                    told += event.text or ""

                    assert [line.rstrip() for line in told.split("\n")] == one.show().text
                streamer.end()

                assert [*text.split("\n"), ""] == one.show().text
                assert 0 == one.screen.column

    def test_long_lines_are_the_terminals_to_wrap(self) -> None:
        """The streamer does not wrap."""
        with terminal(columns=10) as one:
            streamer = TextStreamer(one.file)
            for piece in ("abcdefgh", "日本語", "xyz"):
                streamer.put_event(Event(0, (1,), piece))

            assert ["abcdefgh日", "本語xyz"] == one.show().text

    def test_text_is_printed_as_it_is(self) -> None:
        """Escape sequences too: it is the caller's terminal, and a pipe takes the same bytes."""
        with terminal() as one:
            TextStreamer(one.file).put_event(Event(0, (1,), "a\x1b[31mb"))

            assert "a\x1b[31mb" == one.received()
