"""
Reader of a safetensors file that reads every byte once and hashes what it read.

Each tensor is read to where it is used: into its own memory, of large pages, with torch's alignment (a
float32 program over a memory-mapped file, where tensors are unaligned, has crashed), or into its rows of a
fused tensor.
The hash is computed from that memory, so the checked bytes are the bytes in use.

The format is that of safetensors 0.4: eight bytes with the length of a header, little-endian; the
header, JSON, with dtype, shape and offsets of each tensor; the tensors, without gaps.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import torch
from torch import Tensor

from ..large_pages import LargePages

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}

_MAX_HEADER = 100_000_000
"""Bytes; the limit of safetensors itself."""


@attrs.frozen
class TensorEntry:
    """Header entry of one tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    size: int
    """Bytes."""


@attrs.frozen(eq=False)
class StoredWeights:
    """The tensors of a safetensors file, in memory."""

    tensors: dict[str, Tensor]
    """By name, in the order of the file."""

    fused: dict[str, Tensor]
    """Tensors that hold the rows of several, by the names of the groups."""

    _header: bytes

    @classmethod
    def read(cls, path: Path, groups: Mapping[str, Sequence[str]]) -> "StoredWeights":
        """
        Read a safetensors file.

        Args:
            path: The file.

            groups: Name of each fused tensor to the tensors whose rows it concatenates.

        Raises:
            ValueError: It is not a safetensors file, or its tensors cannot be fused so.
        """
        with path.open("rb") as file:
            header, entries = _head(file, path)
            memory, fused = LargePages(), dict[str, Tensor]()
            tensors: dict[str, Tensor] = {}
            for name, members in groups.items():
                fused[name], rows = _rows(path, members, entries, memory)
                tensors |= dict(zip(members, rows, strict=True))
            ordered = {}
            for name, entry in entries.items():
                ordered[name] = tensors[name] if name in tensors else memory.empty(entry.shape, entry.dtype)
                if file.readinto(_bytes(ordered[name])) != entry.size:
                    raise ValueError(f"{path.name} must hold what its header says: got no end of {name}")
            if file.read(1):
                raise ValueError(f"{path.name} must hold what its header says: got more")
        return cls(ordered, fused, header)

    def sha256(self) -> str:
        """SHA-256 of the file, computed from the tensors in memory."""
        digest = hashlib.sha256(self._header)
        for tensor in self.tensors.values():
            digest.update(_bytes(tensor))
        return digest.hexdigest()


def tensor_entries(path: Path) -> dict[str, TensorEntry]:
    """
    The header entries of a safetensors file, in the order of the file.

    Raises:
        ValueError: It is not a safetensors file.
    """
    with path.open("rb") as file:
        return _head(file, path)[1]


def _head(file: BinaryIO, path: Path) -> tuple[bytes, dict[str, TensorEntry]]:
    length = file.read(8)
    size = int.from_bytes(length, "little")
    if len(length) < 8 or size > _MAX_HEADER:
        raise ValueError(f"{path.name} must be a file of safetensors: got {path}")
    text = file.read(size)
    try:
        facts = {**json.loads(text)}
        facts.pop("__metadata__", None)
        return length + text, _entries(facts)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} must be a file of safetensors: got {path} ({error!r})") from error


def _entries(facts: dict[str, Any]) -> dict[str, TensorEntry]:
    found, end = {}, 0
    for name, fact in sorted(facts.items(), key=lambda item: item[1]["data_offsets"]):
        entry = TensorEntry(_DTYPES[fact["dtype"]], tuple(map(int, fact["shape"])), 0)
        size = math.prod(entry.shape) * entry.dtype.itemsize
        if min(entry.shape, default=0) < 0 or fact["data_offsets"] != [end, end + size]:
            raise ValueError(f"{name} does not lie behind the one before it")
        found[name], end = attrs.evolve(entry, size=size), end + size
    return found


def _rows(
    path: Path, members: Sequence[str], entries: Mapping[str, TensorEntry], memory: LargePages
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """An uninitialised tensor for all of *members*, and each one's rows of it."""
    kinds = {(entries[name].dtype, entries[name].shape[1:]) for name in members if name in entries}
    if len(kinds) != 1 or not all(name in entries and entries[name].shape for name in members):
        raise ValueError(
            f"{path.name} must hold tensors of one dtype and row shape to fuse: got {list(members)}"
        )
    ((dtype, shape),) = kinds
    sizes = [entries[name].shape[0] for name in members]
    whole = memory.empty((sum(sizes), *shape), dtype)
    return whole, torch.split(whole, sizes)


def _bytes(tensor: Tensor) -> Any:
    """The memory of a contiguous tensor."""
    # As bytes, since numpy has no bfloat16.
    return tensor.reshape(-1).view(torch.uint8).numpy()
