"""A folder that is replaced as a whole, whenever the process that does so is killed."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from decodekit.neuron_backend.serialization import replaced_folder as replacing
from decodekit.neuron_backend.serialization.replaced_folder import (
    read_unreplaced,
    recover_folder,
    replaced_folder,
)

KILLED_AT_RENAME = """
import os, sys
from pathlib import Path
from decodekit.neuron_backend.serialization import replaced_folder as replacing

final, number, exchanges = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "exchanges"
if not exchanges:
    replacing._exchange = lambda one, other: False
rename, renamed = Path.rename, []

def counted(self, target):
    renamed.append(self)
    if len(renamed) == number:
        os._exit(9)
    return rename(self, target)

Path.rename = counted
with replacing.replaced_folder(final) as fresh:
    (fresh / "content").write_text("new")
    if number == 0:
        os._exit(9)
    (fresh / "decoder.json").write_text("{}")
"""


def a_folder(final: Path, content: str) -> None:
    """A complete folder."""
    with replaced_folder(final) as fresh:
        (fresh / "content").write_text(content)
        (fresh / "decoder.json").write_text("{}")


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be saved to, and no save removes what another may be writing."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(replacing.fcntl, "flock", refuse)
    with replaced_folder(tmp_path / "decoder") as other:
        a_folder(tmp_path / "decoder", "new")

        assert other.is_dir()
        assert "new" == (tmp_path / "decoder" / "content").read_text()
    assert [tmp_path / "decoder"] == list(tmp_path.iterdir())


@pytest.mark.parametrize("exchanges", [True, False])
def test_is_replaced_and_leaves_nothing(exchanges: bool, tmp_path: Path, monkeypatch) -> None:
    """New, and over an older one."""
    if not exchanges:
        monkeypatch.setattr(replacing, "_exchange", lambda one, other: False)
    for content in ("old", "new"):
        a_folder(tmp_path / "decoder", content)

        assert content == (tmp_path / "decoder" / "content").read_text()
        assert [tmp_path / "decoder"] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "exchanges", "found", "restored"),
    [
        pytest.param(0, True, "old", False, id="while writing"),
        pytest.param(1, False, "old", False, id="before both renames"),
        pytest.param(2, False, "new", True, id="between both renames"),
    ],
)
def test_a_killed_save_loses_nothing(
    number: int, exchanges: bool, found: str, restored: bool, tmp_path: Path
) -> None:
    """The folder is there, or is restored by the next load; the next save removes what is left."""
    final = tmp_path / "decoder"
    a_folder(final, "old")
    command = [sys.executable, "-c", KILLED_AT_RENAME, str(final), str(number)]
    killed = subprocess.run([*command, "exchanges" if exchanges else "renames"], check=False)

    assert 9 == killed.returncode
    assert restored == (not final.exists())
    if restored:
        with pytest.warns(UserWarning, match="was missing and has been restored"):
            recover_folder(final)
    assert found == (final / "content").read_text()
    assert 2 == len(list(tmp_path.iterdir()))
    a_folder(final, "newest")
    assert [final] == list(tmp_path.iterdir())


def test_a_running_save_is_left_alone(tmp_path: Path) -> None:
    """Two at once: neither takes the other's copy for one that was left behind."""
    final, both = tmp_path / "decoder", threading.Barrier(2, timeout=60)

    def save(content: str) -> None:
        with replaced_folder(final) as fresh:
            (fresh / "content").write_text(content)
            both.wait()
            (fresh / "decoder.json").write_text("{}")

    threads = [threading.Thread(target=save, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (final / "content").read_text() in ("one", "two")
    assert [final] == list(tmp_path.iterdir())


def test_a_reader_leaves_a_running_save_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where folders cannot be exchanged, and the old one is away for a moment."""
    final, rename = tmp_path / "decoder", Path.rename
    a_folder(final, "old")

    def read_then_rename(self: Path, target: Path) -> Path:
        recover_folder(final)
        return rename(self, target)

    monkeypatch.setattr(replacing, "_exchange", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", read_then_rename)
    a_folder(final, "new")

    assert "new" == (final / "content").read_text()
    assert [final] == list(tmp_path.iterdir())


def test_nothing_is_restored_from_an_incomplete_copy(tmp_path: Path) -> None:
    """What was being written when the process was killed."""
    copy = tmp_path / f".decoder.{'0' * 32}"
    copy.mkdir()
    recover_folder(tmp_path / "decoder")

    assert [copy] == list(tmp_path.iterdir())


def test_a_new_folder_that_another_save_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between making it and claiming it; another one is made."""
    final, claimed, removed = tmp_path / "decoder", replacing._claimed, []

    def late(folder: Path) -> Any:
        if not removed:
            removed.append(folder)
            a_folder(final, "of another save")
            assert not folder.exists()
        return claimed(folder)

    monkeypatch.setattr(replacing, "_claimed", late)
    a_folder(final, "new")

    assert "new" == (final / "content").read_text()
    assert [final] == list(tmp_path.iterdir())


def test_what_is_replaced_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    """Whether reading both raised or not."""
    final, reads = tmp_path / "decoder", []
    a_folder(final, "old")

    def read() -> str:
        reads.append((final / "content").read_text())
        if len(reads) < 3:
            a_folder(final, f"new {len(reads)}")
        if len(reads) == 2:
            raise ValueError("files do not match")
        return reads[-1]

    assert "new 2" == read_unreplaced(final, read)
    assert 3 == len(reads)


def test_an_error_of_a_folder_that_stays(tmp_path: Path) -> None:
    """Is raised at once; and one that never stays is not read for ever."""
    final = tmp_path / "decoder"
    with pytest.raises(ZeroDivisionError):
        read_unreplaced(final, lambda: 1 / 0)
    with pytest.raises(OSError, match="must not be replaced while it is read"):
        read_unreplaced(final, lambda: a_folder(final, "again"))
