"""The tokens of a tokenizer by their bytes."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs

from .per_tokenizer import PerTokenizer
from .token_bytes import token_bytes


@attrs.frozen(eq=False)
class PieceIndex:
    """Tokens sorted by the bytes that they add to a text; tokens without text are left out."""

    bytes_of: Mapping[int, bytes]
    """Bytes of each id."""

    longest: int
    """Bytes of the longest token."""

    _ids: dict[bytes, tuple[int, ...]]
    _sorted: list[bytes]

    @classmethod
    def of(cls, tokenizer: Any) -> "PieceIndex":
        """The index of a Hugging Face *tokenizer*, cached."""
        return _CACHE.of(tokenizer)

    @classmethod
    def from_bytes(cls, bytes_of: Mapping[int, bytes]) -> "PieceIndex":
        """The index of tokens of these bytes, none of them empty."""
        ids: dict[bytes, tuple[int, ...]] = {}
        for index, data in bytes_of.items():
            ids[data] = (*ids.get(data, ()), index)
        return cls(bytes_of, max(map(len, ids), default=0), ids, sorted(ids))

    def without(self, ids: Collection[int]) -> "PieceIndex":
        """The index without the tokens *ids*; itself if none of them has text."""
        if not any(index in self.bytes_of for index in ids):
            return self
        return self.from_bytes({index: data for index, data in self.bytes_of.items() if index not in ids})

    def exactly(self, data: bytes) -> tuple[int, ...]:
        """Ids of the tokens that are *data*."""
        return self._ids.get(data, ())

    def extending(self, data: bytes) -> Iterator[int]:
        """Ids of the tokens that begin with *data* and are longer."""
        first, end = self._extensions(data)
        for piece in self._sorted[first:end]:
            yield from self._ids[piece]

    def can_extend(self, data: bytes) -> bool:
        """Whether a token begins with *data* and is longer."""
        first, end = self._extensions(data)
        return first < end

    def beginnings(self, data: bytes, start: int = 0) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Tokens that ``data[start:]`` begins with: each one's end in *data*, and its ids; shortest first."""
        for end in range(start + 1, min(len(data), start + self.longest) + 1):
            if ids := self._ids.get(data[start:end]):
                yield end, ids

    def text_of(self, ids: list[int]) -> bytes:
        """The bytes that *ids* add to a text."""
        return b"".join(self.bytes_of.get(index, b"") for index in ids)

    def _extensions(self, data: bytes) -> tuple[int, int]:
        return bisect_right(self._sorted, data), prefix_range(self._sorted, data)[1]


def prefix_range(ordered: Sequence[bytes], data: bytes) -> tuple[int, int]:
    """The range of the *ordered* strings that begin with *data*: its start, and its end."""
    kept = data.rstrip(b"\xff")
    # The smallest string above all that begin with the data, if there is one.
    end = bisect_left(ordered, kept[:-1] + bytes((kept[-1] + 1,))) if kept else len(ordered)
    return bisect_left(ordered, data), end


_CACHE = PerTokenizer(lambda tokenizer: PieceIndex.from_bytes(token_bytes(tokenizer)))
