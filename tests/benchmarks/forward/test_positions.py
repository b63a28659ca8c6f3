"""Positions benchmark."""

import json
from pathlib import Path

import pytest

from decodekit.__main__ import main

ARGUMENTS = ["bench", "positions", "--shape", "tiny", "--target", "eager", "--threads", "1", "--rounds", "2"]


def test_the_command(tmp_path: Path) -> None:
    """Both decoders at position 100, and the long one on both sides of a KV bucket's end."""
    file, plot = tmp_path / "positions.json", tmp_path / "positions.svg"
    status = main([*ARGUMENTS, "--long", "512", "--json", str(file), "--plot", str(plot)])
    found = json.loads(file.read_text())

    assert 0 == status
    assert plot.exists()
    places = [[128, 100], *([512, at] for at in (100, 127, 128, 255, 256, 511))]
    assert places == found["results"]["places"]
    assert [2] * 7 == [len(times) for times in found["results"]["milliseconds"]]
    assert ["position 100 of 512 slots against 128 slots"] == [
        threshold["what"] for threshold in found["thresholds"]
    ]


@pytest.mark.parametrize("wrong", [["--long", "128"], ["--rounds", "0"]])
def test_wrong_arguments(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error, status 1."""
    assert 1 == main([*ARGUMENTS, *wrong])
    assert capsys.readouterr().err.splitlines()[-1].startswith("decodekit: ")
