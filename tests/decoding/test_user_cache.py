"""The folder in which files are kept for a user."""

from pathlib import Path

import pytest

from decodekit.decoding.user_cache import cache_folder


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
