"""Result files that are replaced as a whole."""

import os
from pathlib import Path
from typing import Any

import pytest

from decodekit.benchmarks.measuring.whole_file import write_whole


def test_is_replaced_and_leaves_nothing(tmp_path: Path) -> None:
    """Also in a folder that is not there yet."""
    file = tmp_path / "results" / "a.json"
    for text in ("old", "new"):
        write_whole(file, text)

        assert text == file.read_text()
        assert [file] == list(file.parent.iterdir())


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no half of the new one."""
    file, fdopen = tmp_path / "a.json", os.fdopen
    write_whole(file, "old")

    def full(descriptor: int, *arguments: Any, **options: Any) -> Any:
        opened = fdopen(descriptor, *arguments, **options)
        opened.write("ha")
        opened.close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, "new")

    assert "old" == file.read_text()
    assert [file] == list(tmp_path.iterdir())
