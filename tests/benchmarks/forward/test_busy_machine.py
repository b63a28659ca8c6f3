"""Busy-machine benchmark."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from decodekit.__main__ import main
from decodekit.benchmarks.command_line import benchmark_named
from decodekit.benchmarks.forward import busy_machine
from decodekit.benchmarks.forward.busy_machine import Forward, largest, percentile, stolen_ticks
from decodekit.benchmarks.measuring.busy_processes import busy_processes

ARGUMENTS = ["bench", "busy", "--shape", "tiny", "--target", "eager", "--threads", "1", "--rounds", "2"]


def test_the_command(tmp_path: Path) -> None:
    """Every forward of every round is kept, on both kinds of machine."""
    file = tmp_path / "busy.json"
    status = main([*ARGUMENTS, "--forwards", "3", "--busy", "1", "--json", str(file)])
    found = json.loads(file.read_text())

    assert 0 == status
    assert [6, 6] == [len(found["results"][kind]) for kind in ("quiet", "busy")]
    assert [["quiet", 6], ["1 busy processes", 6]] == [row[:2] for row in found["tables"][0]["rows"]]
    assert all(milliseconds > 0 for milliseconds, _ in found["results"]["busy"])


@pytest.mark.parametrize("wrong", [["--forwards", "0"], ["--busy", "0"], ["--rounds", "0"]])
def test_wrong_arguments(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error, status 1."""
    assert 1 == main([*ARGUMENTS, *wrong])
    assert capsys.readouterr().err.splitlines()[-1].startswith("decodekit: ")


def test_percentiles() -> None:
    """Of a hundred times, the 99th is the second largest."""
    forwards = [Forward(float(time), 0) for time in range(100, 0, -1)]

    assert 99.0 == percentile(forwards, 99)
    assert 50.0 == percentile(forwards, 50)


def test_the_largest_leaves_out_stolen_time() -> None:
    """And is absent if time was stolen of every forward."""
    assert 2.0 == largest([Forward(9.0, 1), Forward(2.0, 0), Forward(1.0, 0)])
    assert largest([Forward(9.0, 1)]) is None


def test_stolen_ticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The eighth number of the line of all cores."""
    file = tmp_path / "stat"
    monkeypatch.setattr(busy_machine, "_STATISTICS", file)
    assert 0 == stolen_ticks()

    file.write_text("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 11 12 13 14 15 16 17 18 19 20\n")

    assert 8 == stolen_ticks()


def children() -> set[str]:
    """Ids of the child processes."""
    files = Path("/proc/self/task").glob("*/children")
    return {child for file in files for child in file.read_text().split()}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_busy_processes_end() -> None:
    """With the context, also by an exception."""
    before, running = children(), set()

    def interrupted() -> None:
        with busy_processes(2):
            running.update(children() - before)
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert 2 == len(running)
    assert not running & children()


def test_nothing_counted_meets_no_goal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where time was stolen of every forward."""
    monkeypatch.setattr(busy_machine, "stolen_ticks", iter(range(10_000)).__next__)
    file = tmp_path / "busy.json"
    main([*ARGUMENTS, "--forwards", "2", "--busy", "1", "--json", str(file)])
    found = json.loads(file.read_text())

    assert ["99th percentile, in quiet medians"] == [each["what"] for each in found["thresholds"]]
    assert "the largest is not judged" in found["notes"][0]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs the affinity")
def test_a_busy_process_for_each_core_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each of the machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})

    assert 3 == benchmark_named("busy").parser().parse_args([]).busy


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_busy_processes_end_with_a_killed_parent() -> None:
    """Which has no time to end them."""
    program = (
        "import pathlib, time\n"
        "from decodekit.benchmarks.measuring.busy_processes import busy_processes\n"
        "with busy_processes(1):\n"
        "    files = pathlib.Path('/proc/self/task').glob('*/children')\n"
        "    print(*(file.read_text().strip() for file in files), flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    ends = time.monotonic() + 20
    while (running := _runs(child)) and time.monotonic() < ends:
        time.sleep(0.1)
    if running:
        os.kill(child, signal.SIGKILL)

    assert not running


def _runs(process: int) -> bool:
    """Whether it computes; one that has ended may wait for its parent."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
