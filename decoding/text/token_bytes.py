"""The bytes that each token of a tokenizer adds to a text."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from .per_tokenizer import PerTokenizer
from .token_pieces import BYTE_OF
from .tokenizer import Tokenizer, decode_ids, is_byte_level

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def has_vocabulary(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Attrs validator: *value* must be a tokenizer with a vocabulary."""
    if isinstance(value, type) or not _has_vocabulary(value):
        raise TypeError(f"'{attribute.name}' must be a Hugging Face tokenizer: got {value!r}")


def _has_vocabulary(tokenizer: Any) -> bool:
    return callable(getattr(tokenizer, "get_vocab", None))


def special_ids(tokenizer: Any) -> set[int]:
    """Ids of the special tokens of *tokenizer*, which add no text."""
    return {*tokenizer.all_special_ids, *(i for i, token in _added(tokenizer).items() if token.special)}


@attrs.frozen
class _Spelling:
    """How the vocabulary of a tokenizer spells bytes."""

    spell: Callable[[str], bytes]
    """The bytes of a name in the vocabulary."""

    literal: frozenset[int]
    """Ids of the tokens whose name is their text."""

    special: frozenset[int]
    """Ids of the special tokens."""

    def of(self, token: int, name: str) -> bytes:
        """The bytes of a *token* that is not special."""
        return name.encode() if token in self.literal else self.spell(name)


def _spelling(tokenizer: Any) -> _Spelling | None:
    if not _has_vocabulary(tokenizer):
        return None
    special = frozenset(special_ids(tokenizer))
    if is_byte_level(tokenizer):
        # Added tokens are decoded from the byte alphabet too, unless a character is not of it.
        return _Spelling(_by_bytes, frozenset(), special)
    # Spaces of added tokens are spelled as others'.
    is_sentence_piece = any("▁" in name for name in tokenizer.get_vocab())
    return _Spelling(_by_sentence_piece, frozenset(), special) if is_sentence_piece else None


_SPELLINGS = PerTokenizer(_spelling)


def spelled_bytes(tokenizer: Any) -> dict[int, bytes] | None:
    """
    Bytes of each token by its spelling in the vocabulary, single-byte tokens first; no special tokens.

    Decoding drops bytes, such as the space before a first word; the spelling has them all. Two spellings
    are known: GPT-2's byte alphabet (``Ġthe``), and SentencePiece's (``▁the``, ``<0x0A>``).

    Returns:
        None if the vocabulary is spelled in another way.
    """
    spelling = _SPELLINGS.of(tokenizer)
    if spelling is None:
        return None
    return {
        index: spelling.of(index, name)
        for name, index in sorted(tokenizer.get_vocab().items(), key=_bytes_first)
        if index not in spelling.special
    }


def token_speller(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    """
    A function from a token to its own bytes, special tokens included; maybe a part of a character.

    By the spelling of the vocabulary where it is known (:func:`spelled_bytes`); of another vocabulary, and
    of special tokens, they are those of the text that the token alone decodes to.
    """
    spelling = _SPELLINGS.of(tokenizer)

    def bytes_of(token: int) -> bytes:
        if spelling is None or token in spelling.special:
            return decode_ids(tokenizer, [token], skip_special_tokens=False).encode()
        name = tokenizer.convert_ids_to_tokens(token)
        return b"" if name is None else spelling.of(token, name)

    return bytes_of


def token_bytes(tokenizer: Any) -> Mapping[int, bytes]:
    """
    Bytes that each token of *tokenizer* adds inside a text; a token that adds none is left out.

    By the spelling of the vocabulary where it is known (:func:`spelled_bytes`), else by what decoding adds
    after another token. A byte token such as ``<0x41>`` is left out too where another token is that
    character: decoding turns a whole run of byte tokens into U+FFFD if it is not UTF-8. Cached per
    tokenizer.
    """
    return _CACHE.of(tokenizer)


def _make(tokenizer: Any) -> Mapping[int, bytes]:
    spelled = spelled_bytes(tokenizer)
    found = _decoded_bytes(tokenizer) if spelled is None else spelled
    names = {index: name for name, index in tokenizer.get_vocab().items()}
    characters = {data for index, data in found.items() if not _BYTE_TOKEN.fullmatch(names[index])}
    return MappingProxyType(
        {
            index: data
            for index, data in found.items()
            if data and not (data in characters and _BYTE_TOKEN.fullmatch(names[index]))
        }
    )


_CACHE: PerTokenizer[Mapping[int, bytes]] = PerTokenizer(_make)


def _decoded_bytes(tokenizer: Any) -> dict[int, bytes]:
    """What decoding adds for each token after a word; nothing for a part of a character."""
    ids = sorted(set(tokenizer.get_vocab().values()) - special_ids(tokenizer))
    first = next((i for i in ids if decode_ids(tokenizer, [i], True).isalnum()), None)
    if first is None:
        return {}
    word, added = decode_ids(tokenizer, [first], True), {}
    for index in ids:
        text = decode_ids(tokenizer, [first, index], True)
        if text.startswith(word) and "\ufffd" not in text:
            added[index] = text[len(word) :].encode()
    return added


def _added(tokenizer: Any) -> dict[int, Any]:
    return dict(getattr(tokenizer, "added_tokens_decoder", {}))


def _bytes_first(item: tuple[str, int]) -> tuple[bool, int]:
    name, index = item
    return _BYTE_TOKEN.fullmatch(name) is None, index


def _by_bytes(name: str) -> bytes:
    # Names outside the byte alphabet are literal text.
    return bytes(BYTE_OF[c] for c in name) if all(c in BYTE_OF for c in name) else name.encode()


def _by_sentence_piece(name: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(name)
    return bytes.fromhex(byte[1]) if byte else name.replace("▁", " ").encode()
