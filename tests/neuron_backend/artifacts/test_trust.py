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


def test_is_kept_below_the_users_cache(monkeypatch, tmp_path):
    """Without DECODEKIT_CACHE, below XDG_CACHE_HOME."""
    monkeypatch.delenv("DECODEKIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    trust.record(b"ours")

    assert [sha256(b"ours")] == [path.name for path in (tmp_path / "decodekit" / "programs").iterdir()]
