"""Compiled programs kept between compilations."""

import os
import time
from pathlib import Path

import pytest

from decodekit.neuron_backend.artifacts.kept_programs import DAYS, digest_of, keep, kept

FILES = {"graph.neff": b"a program", "wrapped_neff.hlo": b""}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the kept programs of a user who has compiled nothing."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path))
    return tmp_path / "kept"


def test_are_found_by_their_digest() -> None:
    """With all of their files, and no others."""
    keep("one", FILES)
    keep("two", {"graph.neff": b"another"})

    assert FILES == kept("one")
    assert {"graph.neff": b"another"} == kept("two")
    assert kept("three") is None


def test_a_digest_depends_on_all_it_is_given() -> None:
    """Graph, arguments and versions, but not their order."""
    facts: dict[str, object] = {"arguments": "-O1", "versions": {"neuronx-cc": "2.20", "libneuronxla": "2.2"}}
    same = {"versions": {"libneuronxla": "2.2", "neuronx-cc": "2.20"}, "arguments": "-O1"}
    others = [
        digest_of(b"graph", **{**facts, "arguments": "-O2"}),
        digest_of(b"graph", **{**facts, "versions": {"neuronx-cc": "2.21", "libneuronxla": "2.2"}}),
        digest_of(b"other graph", **facts),
        digest_of(b"graph"),
    ]

    assert digest_of(b"graph", **facts) == digest_of(b"graph", **same)
    assert 5 == len({digest_of(b"graph", **facts), *others})


def test_what_was_not_compiled_here_is_not_used(folder: Path) -> None:
    """A file that was put into the folder, changed, or written in part."""
    keep("one", FILES)
    content = (folder / "one").read_bytes()

    (folder / "two").write_bytes(content.replace(b"a program", b"b program"))
    (folder / "three").write_bytes(content[:-1])

    assert kept("two") is None
    assert kept("three") is None


def test_are_not_believed_where_others_can_write(folder: Path) -> None:
    """The rules of the record of compiled programs."""
    keep("one", FILES)
    (folder.parent / "programs").chmod(0o777)

    with pytest.warns(UserWarning, match="must not be writable for the group or others"):
        assert kept("one") is None


def test_only_this_user_can_read_them(folder: Path) -> None:
    """Folder and files, and no temporary file is left."""
    keep("one", FILES)

    assert ["one"] == [path.name for path in folder.iterdir()]
    assert [0o700, 0o600] == [path.stat().st_mode & 0o777 for path in (folder, folder / "one")]


def test_unused_ones_are_deleted(folder: Path) -> None:
    """After so many days; a use counts from then on."""
    long_ago = time.time() - (DAYS + 1) * 24 * 60 * 60
    for digest in ("unused", "used"):
        keep(digest, FILES)
        os.utime(folder / digest, (long_ago, long_ago))
    kept("used")

    keep("new", {"graph.neff": b"another"})

    assert ["new", "used"] == sorted(path.name for path in folder.iterdir())


def test_a_folder_that_cannot_be_written_keeps_nothing(folder: Path) -> None:
    """And does not make compilation fail."""
    folder.touch()
    keep("one", FILES)

    assert kept("one") is None
