"""Display of several rows, in a pseudo-terminal and in a file."""

import io
import os
import pathlib
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from decodekit.decoding.results.events import Event
from decodekit.decoding.results.streamers import forward
from decodekit.streaming import BatchDisplay

from ..strategies import examples
from .scripted_events import FINISH, TEXTS, Source, events_of, prompts_of
from .terminal import Terminal, terminal

TRICKY = "ab é日ひ👩🏽👋\u200d\ufe0f\u0301🇯🇵❤한\n\r\t\x1b[2J\x07\x9b\u202e"
PIECES = st.text(st.sampled_from(TRICKY) | st.characters(codec="utf-8"), max_size=30)


@pytest.fixture(autouse=True)
def no_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent of the environment of the tests."""
    monkeypatch.setenv("TERM", "xterm-256color")


class Clock:
    """A settable clock."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def put(display: BatchDisplay, row: int, text: str, last: bool = False) -> None:
    display.put_event(Event(row, (1,), text, FINISH if last else None))


def rows_of(lines: list[str], rows: int) -> list[str]:
    """What each row shows, without blanks."""
    shown, row = [""] * rows, 0
    for line in lines:
        row = int(line[1]) if line.startswith("[") else row
        shown[row] += line[4:].replace(" ", "")
    return shown


def seen(one: Terminal) -> list[str]:
    """The lines without the empty one where the cursor stands."""
    screen = one.show()
    lines = screen.text

    assert (len(lines) - 1, 0) == (len(screen.above) + screen.row, screen.column)
    assert lines.pop() == ""
    return lines


class TestInATerminal:
    """Redrawn in place."""

    def test_rows_grow_side_by_side(self) -> None:
        """Each in its place; the whole texts at the end."""
        with terminal(columns=20) as one:
            display = BatchDisplay(one.file, interval=0)
            print("before", file=one.file, flush=True)
            display.begin([[1], [1]])

            assert ["before", "[0]", "[1]"] == seen(one)

            put(display, 1, "World")
            put(display, 0, "Hel")
            put(display, 0, "lo")

            assert ["before", "[0] Hello", "[1] World"] == seen(one)

            put(display, 0, " to everybody out there", last=True)
            put(display, 1, "\nsecond\nthird")

            hello = ["[0] Hello to everyb", "    ody out there"]
            assert ["before", *hello, "[1] second", "    third"] == seen(one)

            display.end()
            print("after", file=one.file, flush=True)

            assert [
                "before",
                "[0] Hello to everybo",
                "dy out there",
                "[1] World",
                "[1] second",
                "[1] third",
                "after",
            ] == seen(one)

    @pytest.mark.parametrize("joined", [False, True])
    @pytest.mark.parametrize("per_event", range(1, 9))
    def test_no_line_wraps_while_it_runs(self, per_event: int, joined: bool) -> None:
        """Wide characters, marks and emoji, in terminals that join emoji and in those that do not."""
        texts = [text.replace("\n", " ") for text in TEXTS]
        with terminal(columns=17, lines=30, joined=joined) as one:
            display = BatchDisplay(one.file, lines=9, interval=0)
            display.begin(prompts_of(texts))
            told = [""] * len(texts)
            for event in events_of(texts, per_event):
                display.put_event(event)
                shown = rows_of(seen(one), len(texts))
                told[event.row] += event.text or ""

                assert not one.screen.wrapped
                # A blank at the end of a line cannot be seen.
                assert [text.replace(" ", "") for text in told] == shown

        assert texts == told

    @settings(max_examples=examples(60))
    @given(
        st.lists(st.tuples(st.integers(0, 3), PIECES), max_size=12),
        st.integers(8, 30),
        st.integers(2, 9),
        st.integers(1, 3),
        st.booleans(),
    )
    def test_nothing_that_a_text_holds_does_anything(
        self, pieces: list[tuple[int, str]], columns: int, height: int, lines: int, joined: bool
    ) -> None:
        """
        Any text, any size: earlier output stays, and the display stays within the screen.

        The screen model refuses any other control sequence.
        """
        with terminal(columns, height, joined=joined) as one:
            print("before", file=one.file, flush=True)
            display = BatchDisplay(one.file, lines=lines, interval=0)
            display.begin([[1]] * 4)
            for row, text in pieces:
                put(display, row, text)
                now = seen(one)

                assert "before" == now[0]
                assert not one.screen.wrapped
                assert len(now) - 1 <= max(1, height - 1)
            display.end()
            now = seen(one)

            assert "before" == now[0]
            assert one.screen.wraps
            assert one.screen.shows_cursor

    def test_more_rows_than_lines(self) -> None:
        """Those that run are shown before those that have ended; the others are counted."""
        with terminal(columns=30, lines=5) as one:
            display = BatchDisplay(one.file, interval=0)
            display.begin([[1]] * 6)
            for row in range(6):
                put(display, row, f"row {row}", last=row in (0, 2))

            assert ["[1] row 1", "[3] row 3", "[4] row 4", "... 3 more rows"] == seen(one)

            display.end()

            assert [f"[{row}] row {row}" for row in range(6)] == seen(one)

    def test_more_rows_than_lines_in_a_narrow_terminal(self) -> None:
        """The count is cut like any line."""
        with terminal(columns=10, lines=3) as one:
            display = BatchDisplay(one.file, interval=0)
            display.begin([[1]] * 5)

            assert ["[0]", "... 4 mor"] == seen(one)

    def test_fewer_lines_each_where_there_is_little_room(self) -> None:
        """Three rows of three lines on a screen of eight get two each."""
        with terminal(columns=30, lines=8) as one:
            display = BatchDisplay(one.file, lines=3, interval=0)
            display.begin([[1]] * 3)
            for row in range(3):
                put(display, row, "a\nb\nc\nd")

            assert ["[0] c", "    d", "[1] c", "    d", "[2] c", "    d"] == seen(one)

    def test_redrawn_at_intervals(self) -> None:
        """Between two of them nothing is written, and nothing is lost."""
        clock = Clock()
        with terminal() as one:
            display = BatchDisplay(one.file, interval=0.5, clock=clock)
            display.begin([[1]])
            one.received()
            for step in range(1, 11):
                clock.now = step / 8
                put(display, 0, "x")

                assert bool(one.received()) == (step in (4, 8))
            display.end()

            assert "[0] xxxxxxxxxx\r\n" in one.received()

    def test_line_breaks_of_two_characters(self) -> None:
        """Also when they come in two events; a lone carriage return is shown."""
        with terminal() as one:
            display = BatchDisplay(one.file, lines=5, interval=0)
            for piece in ("a\r", "\nb\r\nc\r", "d", "\r"):
                put(display, 0, piece)

            assert ["[0] a", "    b", "    c␍d"] == seen(one)

            display.end()

            assert ["[0] a", "[0] b", "[0] c␍d"] == seen(one)

    @pytest.mark.parametrize("reflows", [False, True])
    def test_a_narrower_terminal(self, reflows: bool) -> None:
        """Old lines that it broke in two may stay above the display; nothing else is touched."""
        with terminal(columns=40, lines=20, reflows=reflows) as one:
            print("before", file=one.file, flush=True)
            display = BatchDisplay(one.file, interval=0)
            display.begin([[1], [1]])
            put(display, 0, "a" * 30)
            one.resize(20, 20)
            put(display, 1, "b" * 30)
            put(display, 1, "c")
            now, width = seen(one), 20 - 1 - len("[0] ")

            assert "before" == now[0]
            assert [
                "[0] " + "a" * width,
                "    " + "a" * width,
                "[1] " + "b" * width,
                "    " + "c",
            ] == now[-4:]
            assert reflows or len(now) == 5

    def test_a_lower_terminal(self) -> None:
        """What does not fit any more is out of reach above; nothing of it stays below."""
        with terminal(columns=30, lines=8) as one:
            display = BatchDisplay(one.file, interval=0)
            display.begin([[1]] * 3)
            for row in range(3):
                put(display, row, "a\nb")
            one.resize(30, 5)
            put(display, 0, "c")
            one.show()

            assert ["[0] bc", "[1] b", "[2] b", ""] == ["".join(line).rstrip() for line in one.screen.grid]

    def test_a_terminal_that_is_narrower_than_it_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As it is just after it was resized: lines are cut, and none becomes two."""
        with terminal(columns=20) as one:
            monkeypatch.setattr(os, "get_terminal_size", lambda *file: os.terminal_size((60, 12)))
            display = BatchDisplay(one.file, interval=0)
            put(display, 0, "a" * 50)
            put(display, 1, "b")

            assert ["[0] " + "a" * 16, "[1] b"] == seen(one)
            assert not one.screen.wrapped

    @pytest.mark.parametrize("reflows", [False, True])
    def test_a_wider_terminal_is_used(self, reflows: bool) -> None:
        """In place."""
        with terminal(columns=20, lines=20, reflows=reflows) as one:
            display = BatchDisplay(one.file, interval=0)
            display.begin([[1], [1]])
            put(display, 0, "a" * 15)
            one.resize(40, 20)
            put(display, 1, "b" * 30)

            assert ["[0] " + "a" * 15, "[1] " + "b" * 30] == seen(one)

    @pytest.mark.parametrize("how", ["raises", "is closed"])
    def test_whatever_ends_it_leaves_the_terminal_sane(self, how: str) -> None:
        """The texts as far as they came, the cursor below them, and what follows is not overwritten."""
        source = Source(events_of(TEXTS[:2], 2), RuntimeError("device"))
        with terminal(columns=60) as one:
            display = BatchDisplay(one.file, interval=0)
            events = forward(source(), display, [[1], [1]])
            first = [next(events) for _ in range(4)]
            if how == "is closed":
                events.close()
            else:
                with pytest.raises(RuntimeError, match="device"):
                    events.throw(RuntimeError("device"))
            print("after", file=one.file, flush=True)
            texts = ["".join(event.text or "" for event in first if event.row == row) for row in (0, 1)]

            assert [*(f"[{row}] {text}".rstrip() for row, text in enumerate(texts)), "after"] == seen(one)
            assert one.screen.wraps
            assert one.screen.shows_cursor

    def test_it_serves_one_generation_after_another(self) -> None:
        """The second below the first."""
        with terminal() as one:
            display = BatchDisplay(one.file)
            for text in ("first", "second"):
                list(forward(iter(events_of([text], 2)), display, [[1]]))

            assert ["[0] first", "[0] second"] == seen(one)

    def test_a_second_one_is_drawn_at_once(self) -> None:
        """Nothing is left of the first, nor of its interval."""
        with terminal() as one:
            display = BatchDisplay(one.file, interval=1, clock=Clock())
            put(display, 0, "first")
            put(display, 1, "first")
            display.end()
            put(display, 0, "second")

            assert ["[0] first", "[1] first", "[0] second"] == seen(one)

    def test_tabs(self) -> None:
        """Take four cells in the display, and are tabs in the text."""
        with terminal() as one:
            display = BatchDisplay(one.file, interval=0)
            put(display, 0, "a\tb")

            assert ["[0] a    b"] == seen(one)

            display.end()

            assert "[0] a\tb\r\n" in one.received()

    def test_a_dumb_terminal_gets_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It knows no sequences."""
        monkeypatch.setenv("TERM", "dumb")
        with terminal() as one:
            list(forward(iter(events_of(TEXTS, 3)), BatchDisplay(one.file), prompts_of(TEXTS)))

            assert "\x1b" not in one.received()

    def test_a_terminal_of_unknown_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Has the size that the environment says."""
        monkeypatch.setenv("COLUMNS", "12")
        monkeypatch.setenv("LINES", "4")
        with terminal(columns=12, lines=4) as one:
            monkeypatch.setattr(os, "get_terminal_size", lambda *file: os.terminal_size((0, 0)))
            display = BatchDisplay(one.file, interval=0)
            put(display, 0, "abcdefghij")

            assert ["[0] abcdefg", "    hij"] == seen(one)


class TestIntoAFile:
    """Plain lines."""

    def test_lines_when_they_are_complete(self) -> None:
        """Or when their row ends; each under its row."""
        file = io.StringIO()
        display = BatchDisplay(file)
        display.begin([[1], [1], [1]])
        steps = [
            (0, "Hel", ""),
            (1, "one\ntw", "[1] one\n"),
            (0, "lo\n\n", "[0] Hello\n[0] \n"),
            (1, "o", ""),
        ]
        for row, text, written in steps:
            before = file.getvalue()
            put(display, row, text)

            assert written == file.getvalue()[len(before) :]
        before = file.getvalue()
        put(display, 1, "!", last=True)
        display.end()

        assert "[1] two!\n[2] \n" == file.getvalue()[len(before) :]

    def test_what_is_left_is_written_when_it_fails(self) -> None:
        """As far as it came."""
        file = io.StringIO()
        display = BatchDisplay(file)
        put(display, 1, "half")
        put(display, 0, "a\nb")
        display.fail(RuntimeError())

        assert "[0] a\n[0] b\n[1] half\n" == file.getvalue()

    def test_text_is_harmless_there_too(self) -> None:
        """The file may be shown in a terminal; tabs stay."""
        file = io.StringIO()
        put(BatchDisplay(file), 0, "\x1b[31mred\tx\r\n", last=True)

        assert "[0] ␛[31mred\tx\n" == file.getvalue()

    def test_an_encoding_that_lacks_a_character(self, tmp_path: pathlib.Path) -> None:
        """Does not stop a generation."""
        path = tmp_path / "latin"
        with path.open("w", encoding="latin-1") as file:
            put(BatchDisplay(file), 0, "é日", last=True)

        assert "[0] é?\n" == path.read_text(encoding="latin-1")

    def test_standard_output_is_looked_up_when_writing(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A display that was made before the redirection follows it."""
        put(BatchDisplay(), 0, "hi", last=True)

        assert "[0] hi\n" == capsys.readouterr().out

    def test_events_without_text_are_refused(self) -> None:
        """They come of a generator without a tokenizer."""
        with pytest.raises(ValueError, match="pass tokenizer= to the Generator"):
            BatchDisplay(io.StringIO()).put_event(Event(0, (1,)))

    @pytest.mark.parametrize(
        ("options", "error"),
        [({"lines": 0}, ValueError), ({"lines": True}, TypeError), ({"interval": -1}, ValueError)],
        ids=str,
    )
    def test_senseless_options_are_refused(self, options: dict[str, Any], error: type[Exception]) -> None:
        """At construction."""
        with pytest.raises(error, match=f"'{next(iter(options))}' must be"):
            BatchDisplay(**options)
