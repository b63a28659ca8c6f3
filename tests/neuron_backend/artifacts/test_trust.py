from decodekit.neuron_backend.artifacts import trust


def test_is_for_what_was_recorded(monkeypatch, tmp_path):
    """A program is known by its content."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path))
    trust.record(b"ours")

    assert trust.is_recorded(b"ours")
    assert not trust.is_recorded(b"theirs")


def test_without_a_place_to_write_nothing_is_known(monkeypatch, tmp_path):
    """A home that cannot be written makes no compilation fail."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "file"))
    trust.record(b"ours")

    assert not trust.is_recorded(b"ours")


def test_is_kept_below_the_users_cache(monkeypatch, tmp_path):
    """Where the variable names none, that of the desktop's convention."""
    monkeypatch.delenv("DECODEKIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    trust.record(b"ours")

    assert [trust.sha256(b"ours")] == [path.name for path in (tmp_path / "decodekit" / "programs").iterdir()]
