"""What the ids of a tokenizer stand for, so that two tokenizers can be compared."""

import codecs
import re
from collections.abc import Iterable
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ...decoding.text.token_pieces import BYTE_OF
from ...decoding.text.tokenizer import is_byte_level

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def a_tokenizer(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse what has no vocabulary."""
    if isinstance(value, type) or not callable(getattr(value, "get_vocab", None)):
        raise TypeError(f"'{attribute.name}' must be a Hugging Face tokenizer: got {value!r}")


@attrs.frozen(eq=False)
class Vocabulary:
    """
    The ids of a Hugging Face tokenizer, and the bytes that each of them adds to a text.

    They are read off the vocabulary's own spelling, since decoding drops what it takes for
    decoration, such as the space before a first word. Two spellings are known: GPT-2's of bytes
    (``Ġthe``), and SentencePiece's (``▁the``, ``<0x0A>``).
    """

    tokenizer: Any = attrs.field(repr=False)

    size: int
    """Ids from here on are not the model's, whatever the tokenizer says."""

    said: dict[int, bytes] = attrs.field(init=False, repr=False)
    """What each id says, tokens of single bytes first. Special tokens say nothing and are not in it."""

    specials: dict[int, str] = attrs.field(init=False, repr=False)
    """Special tokens and their names."""

    opening: list[int] = attrs.field(init=False, repr=False)
    """The special tokens that go before every text: the beginning of sequence, mostly."""

    _adds_space: bool = attrs.field(init=False, repr=False)
    """Whether a space is put before every text."""

    _before: list[tuple[str, list[int]]] = attrs.field(init=False, repr=False)

    @said.default
    def _said_by_each(self) -> dict[int, bytes]:
        names, added = self.tokenizer.get_vocab(), _added(self.tokenizer)
        spell = _by_bytes if is_byte_level(self.tokenizer) else _by_sentence_piece
        if spell is _by_sentence_piece and not any("▁" in name for name in names):
            raise ValueError(
                "a tokenizer must spell its tokens as bytes, like GPT-2, or with ▁ for a space, like "
                f"SentencePiece: got {self.tokenizer!r}"
            )
        special = _special_ids(self.tokenizer)
        return {
            index: name.encode() if index in added else spell(name)
            for name, index in sorted(names.items(), key=_bytes_first)
            if index < self.size and index not in special
        }

    @specials.default
    def _special_names(self) -> dict[int, str]:
        ids = (index for index in _special_ids(self.tokenizer) if 0 <= index < self.size)
        return {index: self.tokenizer.convert_ids_to_tokens(index) for index in ids}

    @opening.default
    def _opening_of_texts(self) -> list[int]:
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
        """The id that ends a sequence, if there is one."""
        index: int | None = self.tokenizer.eos_token_id
        return index

    def by_text(self) -> dict[bytes, int]:
        """The id of each text that is one token."""
        # Of two that say the same the later stands: where a letter is a token, its byte's is hardly used.
        return {said: index for index, said in self.said.items() if said}

    def bytes_of(self, ids: Iterable[int], opens: bool = False) -> bytes:
        """What *ids* say. If they open a text, a space that the tokenizer has put there is none."""
        said = b"".join(self.said.get(index, b"") for index in ids)
        return said[1:] if opens and self._adds_space and said.startswith(b" ") else said

    def opened(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """*ids* behind the :attr:`opening`, unless they begin with it."""
        opening = np.array(self.opening, dtype=np.int64)
        return ids if np.array_equal(ids[: len(opening)], opening) else np.concatenate([opening, ids])

    def encode(self, text: str, opens: bool) -> list[int]:
        """The ids of *text*, which opens a text or goes on from another."""
        if opens or not text:
            return self._encode(text)
        for before, ids in self._before:
            # Unless the two grow together, what follows is as it is in the middle of a text.
            both = self._encode(before + text)
            if both[: len(ids)] == ids:
                return both[len(ids) :]
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return [index for index in ids if index < self.size]


def counterparts(one: Vocabulary, other: Vocabulary) -> dict[int, int]:
    """
    Ids of *one* to the ids of *other* that stand for the same, each at most once.

    Text by what it says, special tokens by name; the two ends of sequence are the same,
    whatever their names.
    """
    first, second = one.by_text(), other.by_text()
    pairs = {first[said]: second[said] for said in first.keys() & second.keys()}
    ids = {name: index for index, name in other.specials.items()}
    pairs |= {index: ids[name] for index, name in one.specials.items() if name in ids}
    if one.eos in one.specials and other.eos in other.specials and one.eos not in pairs:
        pairs = {index: twin for index, twin in pairs.items() if twin != other.eos}
        pairs[one.eos] = other.eos
    return pairs


def characters(said: bytes) -> str:
    """The text of *said*, without half a character at its end."""
    return codecs.getincrementaldecoder("utf-8")("ignore").decode(said)


def ends_in_character(said: bytes) -> bool:
    """Whether *said* ends in the middle of a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    decoder.decode(said)
    return decoder.getstate()[0] != b""


def _added(tokenizer: Any) -> dict[int, Any]:
    return dict(getattr(tokenizer, "added_tokens_decoder", {}))


def _special_ids(tokenizer: Any) -> set[int]:
    return {*tokenizer.all_special_ids, *(i for i, token in _added(tokenizer).items() if token.special)}


def _bytes_first(item: tuple[str, int]) -> tuple[bool, int]:
    name, index = item
    return _BYTE_TOKEN.fullmatch(name) is None, index


def _by_bytes(name: str) -> bytes:
    # Whatever is not in the alphabet stands for itself.
    return bytes(BYTE_OF[c] for c in name) if all(c in BYTE_OF for c in name) else name.encode()


def _by_sentence_piece(name: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(name)
    return bytes.fromhex(byte[1]) if byte else name.replace("▁", " ").encode()
