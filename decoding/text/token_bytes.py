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
    if isinstance(value, type) or not callable(getattr(value, "get_vocab", None)):
        raise TypeError(f"'{attribute.name}' must be a Hugging Face tokenizer: got {value!r}")


def special_ids(tokenizer: Any) -> set[int]:
    """Ids of the special tokens of *tokenizer*, which add no text."""
    return {*tokenizer.all_special_ids, *(i for i, token in _added(tokenizer).items() if token.special)}


def spelled_bytes(tokenizer: Any) -> dict[int, bytes] | None:
    """
    Bytes of each token by its spelling in the vocabulary, single-byte tokens first; no special tokens.

    Decoding drops bytes, such as the space before a first word; the spelling has them all. Two spellings
    are known: GPT-2's byte alphabet (``Ġthe``), and SentencePiece's (``▁the``, ``<0x0A>``).

    Returns:
        None if the vocabulary is spelled in another way.
    """
    names, added = tokenizer.get_vocab(), _added(tokenizer)
    spell = _by_bytes if is_byte_level(tokenizer) else _by_sentence_piece
    if spell is _by_sentence_piece and not any("▁" in name for name in names):
        return None
    special = special_ids(tokenizer)
    return {
        index: name.encode() if index in added else spell(name)
        for name, index in sorted(names.items(), key=_bytes_first)
        if index not in special
    }


_SPELLED: PerTokenizer[dict[int, bytes] | None] = PerTokenizer(spelled_bytes)


def token_speller(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    """
    A function from a token to its own bytes, special tokens included; maybe a part of a character.

    By the spelling of the vocabulary where it is known (:func:`spelled_bytes`); of another vocabulary, and
    of special tokens, they are those of the text that the token alone decodes to.
    """
    spelled = _SPELLED.of(tokenizer) if callable(getattr(tokenizer, "get_vocab", None)) else None

    def bytes_of(token: int) -> bytes:
        if spelled is not None and token in spelled:
            return spelled[token]
        return decode_ids(tokenizer, [token], skip_special_tokens=False).encode()

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
