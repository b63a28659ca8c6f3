"""What a terminal shows of stages."""

import io
import os

import attrs
import pytest

from decodekit.neuron_backend.progress import Stage
from decodekit.neuron_backend.terminal_progress import KEPT_SECONDS, TerminalProgress


def shown(written: str) -> list[str]:
    """The lines of a terminal that was written to, without blanks at their ends."""
    lines = []
    for line in written.split("\n"):
        cells: list[str] = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        lines.append("".join(cells).rstrip())
    return lines


def ended(stage: Stage, seconds: float, **facts: bool) -> Stage:
    """The end of *stage*."""
    return attrs.evolve(stage, seconds=seconds, **facts)


@pytest.fixture
def stream() -> io.StringIO:
    """What is written."""
    return io.StringIO()


@pytest.fixture
def show(stream: io.StringIO) -> TerminalProgress:
    """Writes to the stream."""
    return TerminalProgress(stream)


LOADING = Stage("loading a model of a long name")
SECOND = Stage("compiling width 5 of 1, 5", 2, 2)


def test_a_stage_is_shown_while_it_lasts(show: TerminalProgress, stream: io.StringIO) -> None:
    """A short one leaves an empty line."""
    show(LOADING)
    assert ["loading a model of a long name …"] == shown(stream.getvalue())

    show(ended(LOADING, 0.1))
    assert [""] == shown(stream.getvalue())
    assert stream.getvalue().endswith("\r")


def test_lines_of_long_stages_stay(show: TerminalProgress, stream: io.StringIO) -> None:
    """With their seconds; the next line begins below."""
    show(LOADING)
    show(ended(LOADING, KEPT_SECONDS))
    show(SECOND)

    assert ["loading a model of a long name … 2.0 s", "[######------] compiling width 5 of 1, 5 …"] == shown(
        stream.getvalue()
    )


def test_the_line_of_a_failure_stays(show: TerminalProgress, stream: io.StringIO) -> None:
    """However short it was; a traceback begins below."""
    show(SECOND)
    show(ended(SECOND, 0.1, failed=True))

    assert ["compiling width 5 of 1, 5 … failed after 0.1 s", ""] == shown(stream.getvalue())


def test_a_stage_within_another(show: TerminalProgress, stream: io.StringIO) -> None:
    """The inner one is shown while it lasts, then the outer one again."""
    show(SECOND)
    show(LOADING)
    assert ["loading a model of a long name …"] == shown(stream.getvalue())

    show(ended(LOADING, 0.0))
    assert ["[######------] compiling width 5 of 1, 5 …"] == shown(stream.getvalue())


def test_stages_may_end_in_any_order(show: TerminalProgress, stream: io.StringIO) -> None:
    """As those of several threads."""
    show(LOADING)
    show(SECOND)
    show(ended(LOADING, 3.0))
    show(ended(SECOND, 4.0))

    assert ["loading a model of a long name … 3.0 s", "compiling width 5 of 1, 5 … 4.0 s", ""] == shown(
        stream.getvalue()
    )


def test_a_line_is_cut_at_the_terminals_width(
    show: TerminalProgress, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken line could not be rewritten."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((10, 24)))
    show(LOADING)

    assert ["loading a"] == shown(stream.getvalue())
