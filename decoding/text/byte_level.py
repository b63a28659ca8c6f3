"""Detokenization of byte-level vocabularies: every token is a byte string."""

from collections.abc import Sequence

import attrs

from .token_pieces import BYTE_OF, TokenPieces
from .tokenizer import Tokenizer, decode_ids
from .utf8 import open_from


@attrs.define(eq=False)
class ByteLevelText:
    """Join the bytes of the tokens and decode them as UTF-8, holding an incomplete last character."""

    _tokenizer: Tokenizer
    _skip_special_tokens: bool
    _pieces: TokenPieces
    _open: bytes = b""  # the incomplete last character

    def push(self, ids: Sequence[int]) -> str:
        """Take the next *ids* and return the final text."""
        data = self._open + b"".join(map(self._bytes_of, ids))
        end = open_from(data)
        self._open = data[end:]
        # Malformed bytes become U+FFFD one for one as in the library: both follow Unicode's
        # "substitution of maximal subparts".
        return data[:end].decode(errors="replace")

    def flush(self) -> str:
        """Return the held text; the row has ended."""
        text, self._open = self.peek(), b""
        return text

    def peek(self) -> str:
        """What :meth:`flush` would return now."""
        return self._open.decode(errors="replace")

    def preview(self) -> str:
        """Nothing: only an incomplete character is held."""
        return ""

    def _bytes_of(self, index: int) -> bytes:
        known = self._pieces.bytes_of
        if index not in known:
            known[index] = self._spell(index)
        return known[index]

    def _spell(self, index: int) -> bytes:
        # Part of a character decodes to U+FFFD; only skipped and unknown tokens decode to nothing.
        if not decode_ids(self._tokenizer, [index], self._skip_special_tokens):
            return b""
        token: str = self._tokenizer.convert_ids_to_tokens(index)
        # An added token with a character outside the alphabet is literal text.
        if any(character not in BYTE_OF for character in token):
            return token.encode()
        return bytes(BYTE_OF[character] for character in token)
