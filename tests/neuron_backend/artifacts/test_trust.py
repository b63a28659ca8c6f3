import os

import pytest

from decodekit.neuron_backend.artifacts import trust
from decodekit.neuron_backend.artifacts.file_hashes import sha256


def test_recorded_programs_are_trusted(monkeypatch, tmp_path):
    """A program is identified by its content."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path))
    trust.record(b"ours")

    assert trust.is_recorded(b"ours")
    assert not trust.is_recorded(b"theirs")


def test_an_unwritable_cache_records_nothing(monkeypatch, tmp_path):
    """And does not make compilation fail."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "file"))
    trust.record(b"ours")

    assert not trust.is_recorded(b"ours")


def test_a_cache_that_cannot_be_searched_has_no_records(monkeypatch, tmp_path):
    """A name that is too long fails as a folder without permission does, for the administrator too."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / ("x" * 300)))
    trust.record(b"ours")

    assert not trust.is_recorded(b"ours")


def test_is_kept_below_the_users_cache(monkeypatch, tmp_path):
    """Without DECODEKIT_CACHE, below XDG_CACHE_HOME."""
    monkeypatch.delenv("DECODEKIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    trust.record(b"ours")

    assert [sha256(b"ours")] == [path.name for path in (tmp_path / "decodekit" / "programs").iterdir()]


@pytest.mark.parametrize("path", [".", "programs", f"programs/{sha256(b'ours')}"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_a_record_that_others_can_write_is_not_believed(path, mode, monkeypatch, tmp_path):
    """Neither the entry nor one of its folders; a warning names it."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path))
    trust.record(b"ours")
    (tmp_path / path).chmod((tmp_path / path).stat().st_mode | mode)

    with pytest.warns(UserWarning, match="must not be writable for the group or others"):
        assert not trust.is_recorded(b"ours")


def test_a_record_of_another_user_is_not_believed(monkeypatch, tmp_path):
    """As if it had been put into a shared folder."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path))
    trust.record(b"ours")
    if os.geteuid() == 0:
        os.chown(tmp_path / "programs" / sha256(b"ours"), 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)

    with pytest.warns(UserWarning, match="must belong to this user"):
        assert not trust.is_recorded(b"ours")
