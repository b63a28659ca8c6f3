"""The folder in which files are kept for a user."""

import errno
import shutil
from pathlib import Path

import pytest

from decodekit.decoding.user_cache import cache_folder, kept_file


@pytest.mark.parametrize(
    ("variable", "folder"), [("DECODEKIT_CACHE", "cache"), ("XDG_CACHE_HOME", "cache/decodekit")]
)
def test_a_relative_path_is_one_of_the_working_directory(
    variable: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As commands that run in another directory need it."""
    monkeypatch.delenv("DECODEKIT_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "cache")

    assert tmp_path / folder == cache_folder()


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who is not in the system's list, without $HOME."""

    def unknown() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", unknown)
    for variable in ("DECODEKIT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("variable", ["DECODEKIT_CACHE", "XDG_CACHE_HOME"])
def test_a_home_is_not_needed_where_a_folder_is_named(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By either variable."""
    monkeypatch.setenv(variable, str(tmp_path))

    assert tmp_path in (cache_folder(), cache_folder().parent)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_nothing_is_kept(tmp_path: Path) -> None:
    """As where a folder cannot be written; the refusal names the variable."""
    assert kept_file("any", "name", lambda folder: folder / "made") is None
    with pytest.raises(FileNotFoundError, match="the variable DECODEKIT_CACHE says: got neither"):
        cache_folder()


@pytest.mark.parametrize("left", ["", "conte", "confetti"])
def test_a_damaged_file_is_made_again(left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the machine may leave the name without the content, or with a part of it."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "cache"))

    def made(folder: Path) -> Path:
        (folder / "made").write_text("content")
        return folder / "made"

    kept = kept_file("any", "name", made)
    assert kept is not None
    kept.write_text(left)

    assert kept == kept_file("any", "name", made)
    assert "content" == kept.read_text()


def test_files_are_made_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler says in its own words that a disk is full; that of temporary files may not be."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "cache"))

    def made(folder: Path) -> Path:
        assert tmp_path / "cache" not in folder.parents
        (folder / "made").write_text("content")
        return folder / "made"

    kept = kept_file("any", "name", made)
    assert kept is not None
    assert "content" == kept.read_text()
    monkeypatch.setattr(shutil, "copy", full)
    assert kept_file("any", "other", made) is None


def full(source: object, target: object) -> None:
    """As on a disk without room."""
    raise OSError(errno.ENOSPC, "no room")


@pytest.mark.parametrize("left", [None, "", "00ff"])
def test_a_file_whose_digest_is_damaged_is_made_again(
    left: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And kept from then on."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "cache"))
    made = list[Path]()

    def make(folder: Path) -> Path:
        made.append(folder)
        (folder / "made").write_text("content")
        return folder / "made"

    kept = kept_file("any", "name", make)
    assert kept is not None
    digest = kept.with_name("name.sha256")
    digest.unlink() if left is None else digest.write_text(left)

    assert [kept, kept] == [kept_file("any", "name", make) for _ in range(2)]
    assert len(made) == 2
