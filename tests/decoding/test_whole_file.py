"""Writing a file as a whole."""

import os
import stat
from pathlib import Path

import pytest

from decodekit.decoding.whole_file import write_whole


def test_a_new_file_has_the_mode(tmp_path: Path) -> None:
    """Less what the umask takes away."""
    write_whole(tmp_path / "new", b"one", 0o600)

    assert b"one" == (tmp_path / "new").read_bytes()
    assert 0o600 == stat.S_IMODE((tmp_path / "new").stat().st_mode)
    assert [tmp_path / "new"] == list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no half of the new one."""
    (tmp_path / "file").write_bytes(b"old")

    def full(path: Path, content: bytes) -> None:
        with path.open("wb") as opened:
            opened.write(content[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "file", b"new")

    assert b"old" == (tmp_path / "file").read_bytes()
    assert [tmp_path / "file"] == list(tmp_path.iterdir())


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    """A private one stays private."""
    (tmp_path / "old").write_bytes(b"one")
    (tmp_path / "old").chmod(0o640)
    write_whole(tmp_path / "old", b"two")

    assert b"two" == (tmp_path / "old").read_bytes()
    assert 0o640 == stat.S_IMODE((tmp_path / "old").stat().st_mode)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """The file that it leads to is replaced."""
    (tmp_path / "file").write_bytes(b"one")
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", b"two")

    assert (tmp_path / "link").is_symlink()
    assert b"two" == (tmp_path / "file").read_bytes()


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """It is not replaced by a file."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    try:
        write_whole(tmp_path / "pipe", b"one")

        assert b"one" == os.read(reader, 10)
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
