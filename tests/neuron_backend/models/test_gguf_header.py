"""Headers of GGUF files, against the package gguf."""

import struct
from pathlib import Path
from typing import Any

import pytest

from decodekit.neuron_backend.models.gguf_header import read_header

from .test_gguf_file import made, write_gguf

gguf = pytest.importorskip("gguf")

SETTINGS: dict[str, Any] = {
    "of.flag": True,
    "of.number": 3,
    "of.float": 0.5,
    "of.text": "é",
    "of.texts": ["a", "", "ü"],
    "of.numbers": [1, 2, 3],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with settings of all kinds."""
    return write_gguf(tmp_path / "tiny.gguf", made("gemma3"), "gemma3", settings=SETTINGS)


def test_all_is_as_the_package_reads_it(path: Path) -> None:
    """Settings, names and types of tensors."""
    reader, header = gguf.GGUFReader(path), read_header(path)
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}

    assert set(SETTINGS) <= {key.removeprefix("gemma3.") for key in fields}
    assert fields == {
        key: list(value) if isinstance(value, tuple) else value for key, value in header.settings.items()
    }
    assert {tensor.name: tensor.tensor_type for tensor in reader.tensors} == header.types
    assert {tensor.name for tensor in reader.tensors if len(tensor.shape) == 1} == header.vectors
    assert made("gemma3").config.vocab_size == header.vocab_size
    assert sum(int(tensor.n_elements) for tensor in reader.tensors) == header.count


@pytest.mark.parametrize("left", [0, 3, 23, 24, 60, 400])
def test_a_file_that_was_cut_is_refused(path: Path, left: int) -> None:
    """As a download that was not finished."""
    path.write_bytes(path.read_bytes()[:left])

    with pytest.raises(ValueError, match=r"a GGUF file must .*tiny\.gguf"):
        read_header(path)


def test_lengths_beyond_the_file_are_refused(path: Path) -> None:
    """Before memory is taken for them."""
    content = bytearray(path.read_bytes())
    content[24:32] = struct.pack("<Q", 2**60)
    path.write_bytes(content)

    with pytest.raises(ValueError, match="a GGUF file must be whole"):
        read_header(path)


def test_other_versions_are_refused(path: Path) -> None:
    """Those before 2 have other numbers, and files of the other byte order another version."""
    content = bytearray(path.read_bytes())
    content[4:8] = struct.pack(">I", 3)
    path.write_bytes(content)

    with pytest.raises(ValueError, match=r"must begin with b'GGUF' and a version, 2 or 3: got .*50331648"):
        read_header(path)
