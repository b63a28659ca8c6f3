"""What each token contributes to the text, cached per tokenizer."""

import enum
from typing import Any

import attrs

from .per_tokenizer import PerTokenizer
from .tokenizer import decoder_steps


def _byte_alphabet() -> dict[str, int]:
    # GPT-2's spelling of bytes (Radford et al., 2019): printable Latin-1 characters stand for
    # themselves, the other bytes, in order, for the characters from U+0100 on.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()
"""Each character of the byte-level alphabet to its byte."""


class Kind(enum.Enum):
    """How a token is treated when text is decoded in windows."""

    SKIPPED = enum.auto()
    BYTE = enum.auto()
    REPLACEMENT = enum.auto()
    PLAIN = enum.auto()


@attrs.frozen(eq=False)
class Piece:
    """Cached properties of one token for decoding in windows."""

    kind: Kind
    byte: bytes = b""
    """The byte of a byte token."""

    open: int = 0
    """Trailing characters that any following token removes, such as ``"@@"``."""


@attrs.frozen(eq=False)
class TokenPieces:
    """Cached properties of a tokenizer and of its tokens, each token added when it first occurs."""

    byte_level: bool
    byte_fallback: bool
    bytes_of: dict[int, bytes] = attrs.field(init=False, factory=dict)
    pieces: dict[int, Piece] = attrs.field(init=False, factory=dict)

    @classmethod
    def of(cls, tokenizer: Any) -> "TokenPieces":
        """An empty cache for *tokenizer*."""
        steps = decoder_steps(tokenizer)
        return cls(steps == ["ByteLevel"], "ByteFallback" in steps)


# Two caches: whether special tokens are skipped changes what a token contributes.
_SKIPPING, _SHOWING = PerTokenizer(TokenPieces.of), PerTokenizer(TokenPieces.of)


def pieces_of(tokenizer: Any, skip_special_tokens: bool) -> TokenPieces:
    """The cached properties of *tokenizer*, shared by all rows."""
    return (_SKIPPING if skip_special_tokens else _SHOWING).of(tokenizer)
