"""Start benchmark."""

import json
from pathlib import Path

import pytest

from decodekit.__main__ import main


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    """Imports in separate processes; a decoder is saved once and generates a token in a new process."""
    file = tmp_path / "start.json"
    arguments = ["bench", "start", "--shape", "tiny", "--target", "cpu", "--threads", "1", "--rounds", "1"]
    arguments += ["--cache", str(tmp_path / "cache"), "--json", str(file)]
    status = main(arguments)
    found = json.loads(file.read_text())
    (run,) = found["results"]["first_token"]
    saved = [path.stat().st_mtime_ns for path in tmp_path.glob("cache/*/decoder.json")]

    assert 0 == status
    assert [1, 1, 1] == [len(times) for times in found["results"]["import_ms"]]
    assert not run["compiled"]
    assert 0 < sum(run["phases"].values()) <= run["seconds"]
    assert 1 == len(saved)
    assert 0 == main(arguments)
    assert saved == [path.stat().st_mtime_ns for path in tmp_path.glob("cache/*/decoder.json")]


def test_wrong_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error, status 1."""
    assert 1 == main(["bench", "start", "--rounds", "0"])
    assert "'rounds' must be >= 1: got 0" in capsys.readouterr().err
