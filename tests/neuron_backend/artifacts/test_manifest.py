"""decoder.json, of which no fact is believed before it is checked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from decodekit.decoding import DecoderShape
from decodekit.neuron_backend.artifacts.blueprint import Blueprint
from decodekit.neuron_backend.artifacts.file_hashes import sha256
from decodekit.neuron_backend.artifacts.manifest import NAME, Manifest

MANIFEST = Manifest(
    shape=DecoderShape(1, 8, 61, (1, 4), 4),
    dtype="float32",
    target="cpu",
    attention="sdpa",
    versions={"torch": "2.13.0"},
    cpu_family="x86_64",
    instruction_sets=["avx2"],
    weights={"lm_head.weight": ["float32", 61, 8]},
    files={"programs/width_1.zip": 64 * "0"},
    tree_widths=[],
    spans=[8],
    blueprint=Blueprint("Toy", "masks", "float32", [[1, 8, 1, 8]], {}, []),
)


def sealed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A manifest that was changed, with a checksum that fits."""
    MANIFEST.write(folder)
    facts = json.loads((folder / NAME).read_text())
    del facts["checksum"]
    change(facts)
    checksum = sha256(json.dumps(facts, sort_keys=True).encode())
    (folder / NAME).write_text(json.dumps({**facts, "checksum": checksum}))
    return folder


def test_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Also with its checksum computed again."""
    MANIFEST.write(tmp_path)

    assert MANIFEST == Manifest.read(tmp_path) == Manifest.read(sealed(tmp_path, lambda facts: None))


PATHS = [(name,) for name in ("shape", "dtype", "versions", "files", "spans", "weights", "blueprint")] + [
    ("shape", "batch_size"),
    ("shape", "widths"),
    ("blueprint", "layers"),
    ("blueprint", "ties"),
    ("blueprint", "fused"),
]
VALID: list[tuple[tuple[str, ...], Any]] = [
    (("blueprint",), None),
    (("shape", "batch_size"), 10**30),
    (("blueprint", "layers"), [[]]),
    (("blueprint", "fused"), [[]]),
]
"""What later checks refuse, or what is another decoder's."""


@pytest.mark.parametrize("value", [None, -1, 1.5, True, "x", [None], [-1], [[]], {"a": None}, 10**30])
@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_facts_of_another_type_are_refused(path: tuple[str, ...], value: Any, tmp_path: Path) -> None:
    """With the fact's name, or they are read as what they are."""

    def change(facts: dict[str, Any]) -> None:
        *owners, name = path
        for owner in owners:
            facts = facts[owner]
        facts[name] = value

    folder = sealed(tmp_path, change)
    if (path, value) in VALID:
        Manifest.read(folder)
    else:
        with pytest.raises(ValueError, match=path[-1].rstrip("s")):
            Manifest.read(folder)


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_missing_and_unknown_facts_are_refused(path: tuple[str, ...], tmp_path: Path) -> None:
    """By name; a decoder without a blueprint is one that needs its model."""

    def owner(facts: dict[str, Any]) -> dict[str, Any]:
        return facts if len(path) == 1 else facts[path[0]]

    if path != ("blueprint",):
        with pytest.raises(ValueError, match=f"{path[-1]} is missing"):
            Manifest.read(sealed(tmp_path, lambda facts: owner(facts).pop(path[-1])))
    with pytest.raises(ValueError, match="more is unknown"):
        Manifest.read(sealed(tmp_path, lambda facts: owner(facts).update(more=1)))


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/../../x", "a//b", "./a", "a/", "*", "a[0]", "a?", "", "a\nb", "~/a", "-a"]
)
def test_files_are_below_the_folder_and_no_patterns(name: str, tmp_path: Path) -> None:
    """The hub's downloads take patterns of names."""
    with pytest.raises(ValueError, match="plain paths below the folder"):
        Manifest.read(sealed(tmp_path, lambda facts: facts.update(files={name: 64 * "0"})))


@pytest.mark.parametrize("digest", ["", "0" * 63, "G" * 64, "../x"])
def test_digests_are_digests(digest: str, tmp_path: Path) -> None:
    """SHA-256, in hexadecimal."""
    with pytest.raises(ValueError, match="SHA-256"):
        Manifest.read(sealed(tmp_path, lambda facts: facts.update(files={"a": digest})))


@pytest.mark.parametrize("layer", [[], [1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1, 1]])
def test_layers_have_four_sizes(layer: list[int]) -> None:
    """Of keys and of values, heads and numbers of each."""
    plan = Blueprint("Toy", "masks", "float32", [layer], {}, [])

    with pytest.raises(ValueError, match="four sizes"):
        plan.geometry(61)


def test_is_there_only_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that is interrupted must not be taken for a complete one, which would be restored."""
    write = Path.write_bytes

    def interrupted(self: Path, content: bytes) -> None:
        write(self, content[: len(content) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        MANIFEST.write(tmp_path)

    assert not (tmp_path / NAME).exists()
