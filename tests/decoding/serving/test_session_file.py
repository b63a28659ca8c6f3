"""Sessions as JSON."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decodekit.decoding import Session

from .test_session import generator, hear


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A session of two turns."""
    session = Session(generator(), system="a")
    hear(session.say("ab"))
    hear(session.say([{"role": "user", "content": "cd", "more": [1, None, "é"]}]))
    session.save(tmp_path / "session.json")
    return tmp_path / "session.json"


def test_ids_are_written_once(file: Path) -> None:
    """Each turn has those that it adds."""
    saved = json.loads(file.read_text())
    loaded = Session.load(file, generator())

    written = [
        token
        for turn in saved["turns"]
        for segment in [*turn["added"], *turn["answer"]]
        for token in segment["ids"]
    ]
    assert loaded.ids == written
    assert {"role": "user", "content": "cd", "more": [1, None, "é"]} == loaded.turns[1].messages[0]


def test_an_empty_session(tmp_path: Path) -> None:
    """Has its system message."""
    Session(generator(), system="ab").save(tmp_path / "empty")
    loaded = Session.load(tmp_path / "empty", generator())

    assert ((), "ab") == (loaded.turns, loaded.system)


def test_a_random_stream_of_numpy(tmp_path: Path) -> None:
    """It is a number as any other."""
    Session(generator(), random_stream=np.int64(7)).save(tmp_path / "one")

    assert 7 == Session.load(tmp_path / "one", generator()).random_stream


def test_a_save_that_fails_leaves_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, say."""
    before = file.read_bytes()

    def full(path: Path, content: bytes) -> None:
        with path.open("wb") as opened:
            opened.write(content[:10])
        raise OSError("no space left")

    session = Session.load(file, generator())
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space left"):
        session.save(file)

    assert before == file.read_bytes()
    assert [file] == list(file.parent.iterdir())


def test_what_is_no_json_is_not_written(file: Path) -> None:
    """The file stays as it was."""
    before = file.read_bytes()
    session = Session(generator())
    hear(session.say([{"role": "user", "content": "a", "image": object()}]))
    with pytest.raises(TypeError, match="JSON"):
        session.save(file)

    assert before == file.read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved.update(format="another"),
        lambda saved: saved.pop("turns"),
        lambda saved: saved.update(turns=3),
        lambda saved: saved.update(system=3),
        lambda saved: saved.update(random_stream="a"),
        lambda saved: saved["turns"][1].update(shared=9),
        lambda saved: saved["turns"][1].update(shared=None),
        lambda saved: saved["turns"][1].update(added=[]),
        lambda saved: saved["turns"][1].update(text=None),
        lambda saved: saved["turns"][1].update(finish_reason=1),
        lambda saved: saved["turns"][1].update(messages=[]),
        lambda saved: saved["turns"][1]["added"][0].update(ids=["a"]),
        lambda saved: saved["turns"][1]["added"][0].update(text=1),
        lambda saved: saved["turns"][1]["answer"][0].update(hidden=1),
    ],
)
def test_other_files_are_refused(change: Any, file: Path) -> None:
    """By their name."""
    saved = json.loads(file.read_text())
    change(saved)
    file.write_text(json.dumps(saved))

    with pytest.raises(ValueError, match=r"'file' must be a session that save\(\) has written: got .*json"):
        Session.load(file, generator())


def test_what_is_no_json_is_no_session(file: Path) -> None:
    """Text, brackets deeper than the parser follows, and no file at all."""
    for text in ("a: b", "[" * 100_000):
        file.write_text(text)
        with pytest.raises(ValueError, match="must be a session"):
            Session.load(file, generator())
    with pytest.raises(FileNotFoundError):
        Session.load(file.with_suffix(".none"), generator())


def test_another_tokenizer_is_refused(file: Path) -> None:
    """One that encodes the first turn otherwise."""
    saved = json.loads(file.read_text())
    saved["turns"][0]["added"][0]["ids"][1] += 1
    file.write_text(json.dumps(saved))

    with pytest.raises(ValueError, match="must have been written with this tokenizer"):
        Session.load(file, generator())
