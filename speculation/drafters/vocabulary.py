"""Bytes of each token id, to relate two tokenizers."""

import codecs
from collections.abc import Iterable
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ...decoding.text.token_bytes import special_ids, spelled_bytes


@attrs.frozen(eq=False)
class Vocabulary:
    """
    The ids of a Hugging Face tokenizer, and the bytes that each of them adds to a text.

    They are derived from the vocabulary's spelling, as decoding drops bytes such as the space
    before a first word. Two spellings are supported: GPT-2's byte alphabet (``Ġthe``), and
    SentencePiece's (``▁the``, ``<0x0A>``).
    """

    tokenizer: Any = attrs.field(repr=False)

    size: int
    """Vocabulary size of the model; the tokenizer's ids from here on are ignored."""

    token_bytes: dict[int, bytes] = attrs.field(init=False, repr=False)
    """Bytes of each id, single-byte tokens first; without special tokens."""

    specials: dict[int, str] = attrs.field(init=False, repr=False)
    """Special tokens and their names."""

    leading_specials: list[int] = attrs.field(init=False, repr=False)
    """Special tokens before every text, usually the beginning of sequence."""

    _adds_space: bool = attrs.field(init=False, repr=False)
    """Whether the tokenizer prepends a space to every text."""

    _before: list[tuple[str, list[int]]] = attrs.field(init=False, repr=False)

    @token_bytes.default
    def _bytes_by_id(self) -> dict[int, bytes]:
        spelled = spelled_bytes(self.tokenizer)
        if spelled is None:
            raise ValueError(
                "a tokenizer must spell its tokens as bytes, like GPT-2, or with ▁ for a space, like "
                f"SentencePiece: got {self.tokenizer!r}"
            )
        return {index: data for index, data in spelled.items() if index < self.size}

    @specials.default
    def _special_names(self) -> dict[int, str]:
        ids = (index for index in special_ids(self.tokenizer) if 0 <= index < self.size)
        return {index: self.tokenizer.convert_ids_to_tokens(index) for index in ids}

    @leading_specials.default
    def _special_tokens_before_text(self) -> list[int]:
        ids = self.tokenizer.encode("a")
        bare = self._encode("a")
        ends = [end for end in range(len(ids)) if ids[end : end + len(bare)] == bare]
        return [index for index in ids[: ends[0]] if index < self.size] if ends else []

    @_adds_space.default
    def _finds_a_space(self) -> bool:
        return self.bytes_of(self._encode("a")).startswith(b" ")

    @_before.default
    def _short_texts(self) -> list[tuple[str, list[int]]]:
        return [(text, self._encode(text)) for text in (".", "a", "\n")]

    @property
    def eos(self) -> int | None:
        """End-of-sequence id, or None."""
        index: int | None = self.tokenizer.eos_token_id
        return index

    def by_text(self) -> dict[bytes, int]:
        """Map bytes to the id of the token that has them."""
        # Of two ids with the same bytes the later one wins: byte tokens of letters are rarely used.
        return {data: index for index, data in self.token_bytes.items() if data}

    def bytes_of(self, ids: Iterable[int], starts_text: bool = False) -> bytes:
        """Bytes of *ids*, without the space that the tokenizer prepends if they start a text."""
        data = b"".join(self.token_bytes.get(index, b"") for index in ids)
        return data[1:] if starts_text and self._adds_space and data.startswith(b" ") else data

    def with_leading_specials(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Prepend :attr:`leading_specials` to *ids*, unless they begin with them."""
        leading_specials = np.array(self.leading_specials, dtype=np.int64)
        return (
            ids
            if np.array_equal(ids[: len(leading_specials)], leading_specials)
            else np.concatenate([leading_specials, ids])
        )

    def encode(self, text: str, starts_text: bool) -> list[int]:
        """Ids of *text*, at the start of a text or inside one."""
        if starts_text or not text:
            return self._encode(text)
        for before, ids in self._before:
            # Unless a token spans both, the rest is tokenized as inside a text.
            both = self._encode(before + text)
            if both[: len(ids)] == ids:
                return both[len(ids) :]
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return [index for index in ids if index < self.size]


def counterparts(one: Vocabulary, other: Vocabulary) -> dict[int, int]:
    """
    Map ids of *one* to equivalent ids of *other*, each at most once.

    Ordinary tokens are matched by bytes, special tokens by name; the two end-of-sequence tokens
    match regardless of their names.
    """
    first, second = one.by_text(), other.by_text()
    pairs = {first[data]: second[data] for data in first.keys() & second.keys()}
    ids = {name: index for index, name in other.specials.items()}
    pairs |= {index: ids[name] for index, name in one.specials.items() if name in ids}
    if one.eos in one.specials and other.eos in other.specials and one.eos not in pairs:
        pairs = {index: twin for index, twin in pairs.items() if twin != other.eos}
        pairs[one.eos] = other.eos
    return pairs


def characters(data: bytes) -> str:
    """Decode UTF-8 *data*, without an incomplete character at its end."""
    return codecs.getincrementaldecoder("utf-8")("ignore").decode(data)


def ends_in_character(data: bytes) -> bool:
    """Whether *data* ends inside a UTF-8 character."""
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    decoder.decode(data)
    return decoder.getstate()[0] != b""
