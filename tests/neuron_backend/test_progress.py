"""Stages, and who is told of them."""

import io
import logging

import pytest

from decodekit.neuron_backend.progress import SILENT, Progress, Stage, stage
from decodekit.neuron_backend.progress_option import progress_of
from decodekit.neuron_backend.terminal_progress import TerminalProgress


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """
    Make stderr a terminal, of one process.

    Called in the test, since pytest replaces stderr after its fixtures.
    """
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    return stream


class TestStage:
    def test_begins_and_ends(self) -> None:
        """Seconds are known at the end only; stages may lie within others."""
        told: list[Stage] = []
        with stage(told.append, "outer", 2, 3), stage(told.append, "inner"):
            pass

        assert [("outer", 2, 3), ("inner", 1, 1), ("inner", 1, 1), ("outer", 2, 3)] == [
            (one.name, one.number, one.of) for one in told
        ]
        assert [True, True, False, False] == [one.seconds is None for one in told]
        inner, outer = told[2].seconds, told[3].seconds
        assert inner is not None
        assert outer is not None
        assert 0 <= inner <= outer

    def test_that_fails_ends_too(self) -> None:
        """The exception goes on."""
        told: list[Stage] = []

        with pytest.raises(ZeroDivisionError), stage(told.append, "dividing"):
            _ = 1 / 0

        assert [False, True] == [one.failed for one in told]
        assert str(told[1]).startswith("dividing … failed after ")

    def test_may_be_noted(self) -> None:
        """At its end."""
        told: list[Stage] = []
        with stage(told.append, "compiling") as notes:
            notes.text = "compiled before"

        assert ["", "compiled before"] == [one.note for one in told]
        assert str(told[1]).endswith(" s, compiled before")

    def test_is_logged_under_decodekit(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A line at INFO for each end, with every option."""
        monkeypatch.setattr("time.perf_counter", lambda: 7.0)
        with caplog.at_level(logging.INFO, "decodekit"), stage(SILENT, "compiling width 5 of 1, 5"):
            pass

        (record,) = caplog.records
        assert logging.INFO == record.levelno
        assert "compiling width 5 of 1, 5 … 0.0 s" == record.getMessage()


class TestOption:
    def test_a_callable_is_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Instead of the terminal."""
        terminal = open_terminal(monkeypatch)
        told: list[Stage] = []
        own: Progress = told.append

        with stage(progress_of(own), "one"):
            pass

        assert 2 == len(told)
        assert "" == terminal.getvalue()

    def test_none_shows_lines_in_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By default."""
        terminal = open_terminal(monkeypatch)
        with stage(progress_of(None), "compiling"):
            assert "compiling …" in terminal.getvalue()

    def test_false_is_quiet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In a terminal too."""
        terminal = open_terminal(monkeypatch)
        with stage(progress_of(False), "compiling"):
            pass

        assert "" == terminal.getvalue()

    def test_none_is_quiet_in_a_pipe(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Or a file."""
        monkeypatch.setattr("sys.stderr", pipe := io.StringIO())
        with stage(progress_of(None), "compiling"):
            pass

        assert "" == pipe.getvalue()

    def test_is_quiet_without_stderr(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As under pythonw."""
        monkeypatch.setattr("sys.stderr", None)

        assert SILENT is progress_of(None)

    def test_only_the_first_rank_shows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ranks share a terminal."""
        open_terminal(monkeypatch)
        monkeypatch.setenv("RANK", "1")
        assert SILENT is progress_of(None)

        monkeypatch.setenv("RANK", "0")
        assert isinstance(progress_of(None), TerminalProgress)

    def test_the_log_replaces_the_terminal(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nothing is shown twice."""
        open_terminal(monkeypatch)
        assert SILENT is not progress_of(None)

        with caplog.at_level(logging.INFO, "decodekit"):
            assert SILENT is progress_of(None)

    @pytest.mark.parametrize("option", [True, "quiet", 0.5])
    def test_others_are_refused(self, option: object) -> None:
        """By the rule."""
        with pytest.raises(TypeError, match=r"'progress' must be None, False or a callable: got "):
            progress_of(option)  # type: ignore[arg-type]
