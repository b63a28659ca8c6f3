"""Reading a safetensors file once, and its hash."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from decodekit.decoding.file_digest import file_sha256
from decodekit.neuron_backend.artifacts.stored_weights import StoredWeights, tensor_entries

from ...strategies import examples

DTYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn,
    torch.int8, torch.int64, torch.bool,
)  # fmt: skip
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def numbers(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    """Random numbers of any dtype and shape."""
    generator = torch.Generator().manual_seed(seed)
    return (8 * torch.randn(shape, generator=generator)).to(dtype)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether dtype, shape and values are equal."""
    # float8 has no comparison of its own.
    both = (tensor.reshape(-1).view(torch.uint8) for tensor in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*both)


def raw(header: object, content: bytes = b"") -> bytes:
    """The bytes of a file with that header."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
@given(st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES), max_size=6), st.booleans())
def test_reads_what_safetensors_reads(
    tmp_path: Path, kinds: list[tuple[torch.dtype, tuple[int, ...]]], metadata: bool
) -> None:
    """Any dtypes and shapes, also empty ones; aligned; with the hash of the file."""
    path = tmp_path / "any.safetensors"
    saved = {f"tensor {index}": numbers(*kind, index) for index, kind in enumerate(kinds)}
    save_file(saved, path, metadata={"format": "pt"} if metadata else None)

    read = StoredWeights.read(path, {})

    expected = load_file(path)
    assert set(expected) == set(read.tensors)
    assert all(same(tensor, read.tensors[name]) for name, tensor in expected.items())
    assert {0} >= {tensor.data_ptr() % 64 for tensor in read.tensors.values()}
    assert file_sha256(path) == read.sha256()


def test_a_group_is_one_tensor(tmp_path: Path) -> None:
    """Its members are rows of one aligned tensor, in the given order."""
    path = tmp_path / "rows.safetensors"
    saved = {name: numbers(torch.bfloat16, (rows, 5), rows) for name, rows in (("a", 3), ("b", 1), ("c", 2))}
    save_file(saved, path)

    read = StoredWeights.read(path, {"both": ["c", "a"]})

    both = read.fused["both"]
    assert torch.equal(torch.cat([saved["c"], saved["a"]]), both)
    assert [0, 0] == [both.data_ptr() % 64, read.tensors["b"].data_ptr() % 64]
    assert both.data_ptr() == read.tensors["c"].data_ptr()
    assert both[2:].data_ptr() == read.tensors["a"].data_ptr()
    assert file_sha256(path) == read.sha256()


def test_the_hash_is_of_what_is_in_memory(tmp_path: Path) -> None:
    """A later change of the file does not count, and a change of the tensor does."""
    path = tmp_path / "one.safetensors"
    save_file({"a": torch.zeros(3)}, path)
    read, before = StoredWeights.read(path, {}), file_sha256(path)
    path.write_bytes(b"something else")

    assert before == read.sha256()

    read.tensors["a"][1] = 1

    assert before != read.sha256()


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        (2**40).to_bytes(8, "little"),
        raw([]),
        raw({"a": 1}),
        raw({"a": {**ENTRY, "dtype": "F3"}}, bytes(8)),
        raw({"a": {**ENTRY, "shape": [3]}}, bytes(8)),
        raw({"a": {**ENTRY, "shape": [-2]}}, bytes(8)),
        raw({"a": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12)),
        raw({"a": ENTRY, "b": ENTRY}, bytes(8)),
        raw({"a": ENTRY}, bytes(7)),
        raw({"a": ENTRY}, bytes(9)),
    ],
    ids=[
        *("empty", "short", "endless", "a list", "no fact", "dtype", "size", "negative", "gap", "overlap"),
        *("cut", "longer"),
    ],
)
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    """Missing or inconsistent headers."""
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)

    with pytest.raises(ValueError, match=r"broken\.safetensors must"):
        StoredWeights.read(path, {})


@pytest.mark.parametrize("members", [["a", "b"], ["a", "c"], ["a", "missing"], ["d", "d"]])
def test_rows_of_different_kinds_cannot_be_fused(members: list[str], tmp_path: Path) -> None:
    """Another row length or dtype, a missing tensor, or one without rows."""
    path = tmp_path / "mixed.safetensors"
    save_file(
        {
            "a": torch.zeros(2, 3),
            "b": torch.zeros(2, 4),
            "c": torch.zeros(2, 3).double(),
            "d": torch.zeros(()),
        },
        path,
    )
    assert {"a", "b", "c", "d"} == set(tensor_entries(path))

    with pytest.raises(ValueError, match="must hold tensors of one dtype and row shape to fuse"):
        StoredWeights.read(path, {"both": members})
