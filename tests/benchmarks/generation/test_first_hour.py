"""First-hour benchmark, without its commands."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from decodekit.__main__ import main
from decodekit.benchmarks.generation import first_hour


def test_a_checkout_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its absolute path, without pip's cache; the versions are the environment's."""
    commands: dict[str, Sequence[str]] = {}

    def ran(name: str, command: Sequence[str], folder: Path) -> first_hour.Stage:
        commands[name] = command
        return first_hour.Stage(name, 1.0, '{"torch": "9.9"}' if name == "versions" else "out")

    monkeypatch.setattr(first_hour, "_ran", ran)
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path / "checkout")

    assert 0 == main(["bench", "first-hour", "--install", ".", "--json", str(tmp_path / "found.json")])
    assert f"{tmp_path / 'checkout'}[gguf]" == commands["install"][-1]
    assert "--no-cache-dir" in commands["install"]
    assert commands["install"][0] == commands["versions"][0] == commands["doctor"][0]
    assert {"torch": "9.9"} == json.loads((tmp_path / "found.json").read_text())["versions"]


@pytest.mark.parametrize("wrong", [["--install", "no-such-folder"], ["--max-tokens", "0"]])
def test_wrong_arguments(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before a command is run."""
    monkeypatch.setattr(first_hour, "_ran", None)

    assert 1 == main(["bench", "first-hour", *wrong])
    assert f"'{wrong[0][2:].replace('-', '_')}' must be" in capsys.readouterr().err
