"""
The header of a GGUF file: its settings and the types of its tensors, read without these.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3. The package
gguf reads the same in seconds.
"""

import math
import struct
from collections.abc import Mapping
from mmap import ACCESS_READ, mmap
from os import PathLike
from pathlib import Path
from typing import Any

import attrs

MAGIC = b"GGUF"
"""What a file begins with."""

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Formats of :mod:`struct` by the type of a value."""

_BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    30: (1, 2),
}
"""
Numbers and bytes of a block by the type of a tensor, as in ggml-common.h.

F32, F16, Q4_0 to Q8_0, Q2_K to Q8_K and BF16.
"""

_ALIGNMENT = 32
"""Of the tensors, unless the settings say another."""

_EMBEDDINGS = "token_embd.weight"

_TEXT, _ARRAY = 8, 9
_VERSIONS = (2, 3)


@attrs.frozen
class GgufHeader:
    """What a file says before its tensors."""

    settings: Mapping[str, Any]
    """Numbers, texts, and sequences of them, by key."""

    types: Mapping[str, int]
    """The number of each tensor's type, by name; :class:`gguf.GGMLQuantizationType` names them."""

    vectors: frozenset[str]
    """Names of the tensors of one dimension."""

    count: int = 0
    """Numbers in all tensors."""

    least_size: int = 0
    """Bytes up to the end of the last tensor; up to its beginning if its type is not known here."""

    vocab_size: int | None = None
    """Rows of the embeddings; None without them."""


def read_header(path: str | PathLike[str]) -> GgufHeader:
    """
    Read the header of the file *path*.

    Raises:
        OSError: The file cannot be read.

        ValueError: It has no such header, or says that it is one of several parts of a model.
    """
    file = Path(path)
    if file.stat().st_size == 0:
        raise ValueError(f"a GGUF file must have a header: got the empty file {file}")
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
        try:
            header = _header(_Cursor(content))
        except (struct.error, KeyError, MemoryError, OverflowError, ZeroDivisionError) as error:
            raise ValueError(f"a GGUF file must be whole: got {file}, whose header cannot be read") from error
    parts = header.settings.get("split.count", 1)
    if parts > 1:
        raise ValueError(
            f"a GGUF file must have the whole model: got {file}, one of {parts} parts; "
            "`llama-gguf-split --merge FIRST_PART WHOLE` of llama.cpp joins them"
        )
    return header


def _header(cursor: "_Cursor") -> GgufHeader:
    magic, version = bytes(cursor.numbers("B", len(MAGIC))), cursor.number("I")
    if magic != MAGIC or version not in _VERSIONS:
        raise ValueError(
            f"a GGUF file must begin with {MAGIC!r} and a version, {' or '.join(map(str, _VERSIONS))}: "
            f"got {magic!r}, {version}"
        )
    tensors, entries = cursor.numbers("Q", 2)
    settings = {}
    for _ in range(entries):
        key = cursor.text()
        settings[key] = cursor.value(cursor.number("I"))
    types, vectors, count, vocab_size, end = {}, set[str](), 0, None, 0
    for _ in range(tensors):
        name = cursor.text()
        dimensions = cursor.number("I")
        # The columns of a matrix come first.
        shape = cursor.numbers("Q", dimensions)
        count += math.prod(shape)
        types[name] = cursor.number("I")
        numbers, size = _BLOCKS.get(types[name], (1, 0))
        end = max(end, cursor.number("Q") + math.prod(shape) // numbers * size)
        if dimensions == 1:
            vectors.add(name)
        if name == _EMBEDDINGS and shape:
            vocab_size = shape[-1]
    begin = -cursor.at % settings.get("general.alignment", _ALIGNMENT) + cursor.at
    return GgufHeader(settings, types, frozenset(vectors), count, begin + end, vocab_size)


@attrs.define
class _Cursor:
    """A place in a file's content, behind what was read."""

    _content: mmap
    at: int = attrs.field(default=0, init=False)
    """In bytes."""

    def number(self, kind: str) -> Any:
        """The next number, of a format of :mod:`struct`."""
        return self.numbers(kind, 1)[0]

    def numbers(self, kind: str, count: int) -> tuple[Any, ...]:
        """The next *count* numbers."""
        form = f"<{count}{kind}"
        found = struct.unpack_from(form, self._content, self.at)
        self.at += struct.calcsize(form)
        return found

    def text(self) -> str:
        """The next string."""
        size = self.number("Q")
        (found,) = struct.unpack_from(f"{size}s", self._content, self.at)
        self.at += size
        return bytes(found).decode(errors="replace")

    def value(self, kind: int) -> Any:
        """The next value, of a type of GGUF."""
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            return self.number(_NUMBERS[kind])
        kind, count = self.number("I"), self.number("Q")
        return (
            self.numbers(_NUMBERS[kind], count)
            if kind in _NUMBERS
            else [self.value(kind) for _ in range(count)]
        )
