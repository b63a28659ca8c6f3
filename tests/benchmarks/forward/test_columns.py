"""Columns benchmark."""

import json
from pathlib import Path

import pytest

from decodekit.__main__ import main

ARGUMENTS = ["bench", "columns", "--shape", "tiny", "--target", "eager", "--threads", "1", "--rounds", "2"]


def test_the_command(tmp_path: Path) -> None:
    """One, five and nine columns of a row, and eight rows, each in every round."""
    file = tmp_path / "columns.json"
    status = main([*ARGUMENTS, "--json", str(file)])
    found = json.loads(file.read_text())

    assert 0 == status
    assert [[1, 1], [1, 5], [1, 9], [8, 1]] == [row[:2] for row in found["tables"][0]["rows"]]
    assert [2] * 4 == [len(times) for times in found["results"]["milliseconds"]]
    wide = ("5 columns with 5 tokens", "9 columns with 9 tokens", "8 rows with 8 tokens")
    assert [f"{what} against 1 column with 1 token" for what in wide] == [
        threshold["what"] for threshold in found["thresholds"]
    ]


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error, status 1."""
    assert 1 == main([*ARGUMENTS, "--rounds", "0"])
    assert capsys.readouterr().err.splitlines()[-1].startswith("decodekit: ")
