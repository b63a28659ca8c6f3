"""Padding benchmark."""

import json
from pathlib import Path

import pytest

from decodekit.__main__ import main

ARGUMENTS = ["bench", "padding", "--shape", "tiny", "--target", "eager", "--threads", "1", "--rounds", "2"]


def test_the_command(tmp_path: Path) -> None:
    """Chunks and batches of fewer and fewer tokens, each in every round."""
    file = tmp_path / "padding.json"
    status = main([*ARGUMENTS, "--json", str(file)])
    found = json.loads(file.read_text())

    assert 0 == status
    chunks = [*([1, 64, tokens] for tokens in (64, 32, 16, 8)), [1, 8, 8]]
    batches = [[8, 1, active] for active in (8, 4, 2, 1)]
    assert [*chunks, *batches] == [row[:3] for row in found["tables"][0]["rows"]]
    [goal] = found["thresholds"]
    assert "64 columns with 8 tokens against 64 columns with 64 tokens" == goal["what"]
    assert [2] * 9 == [len(times) for times in found["results"]["milliseconds"]]


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error, status 1."""
    assert 1 == main([*ARGUMENTS, "--rounds", "0"])
    assert capsys.readouterr().err.splitlines()[-1].startswith("decodekit: ")
