"""Compile time benchmark."""

import json
from pathlib import Path

import pytest

from decodekit.__main__ import main

from ...toolchain_mark import needs_toolchain

ARGUMENTS = ["bench", "compile-time", "--shape", "tiny", "--formats", "bfloat16-int8", "--threads", "1"]


@pytest.mark.slow
@needs_toolchain
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The format with the model's layers and with twice as many, each compiled in folders of its own."""
    places = {name: tmp_path / name for name in ("DECODEKIT_CACHE", "TORCHINDUCTOR_CACHE_DIR")}
    for name, place in places.items():
        monkeypatch.setenv(name, str(place))
    file = tmp_path / "compile-time.json"
    status = main([*ARGUMENTS, "--rounds", "1", "--json", str(file)])
    found = json.loads(file.read_text())

    assert 0 == status
    assert [["bfloat16-int8", 2], ["bfloat16-int8", 4]] == [row[:2] for row in found["tables"][0]["rows"]]
    assert not any(place.exists() for place in places.values())
    assert [1, 1] == [len(each["seconds"]) for each in found["results"]]


@pytest.mark.parametrize("wrong", [["--rounds", "0"], ["--layers", "3"]])
def test_wrong_arguments(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error, status 1."""
    assert 1 == main([*ARGUMENTS, *wrong])
    assert capsys.readouterr().err.splitlines()[-1].startswith("decodekit: ")
