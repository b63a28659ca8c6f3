"""Detokenization of all other vocabularies: new tokens are decoded after their neighbours."""

import re
from collections.abc import Sequence

import attrs

from .token_pieces import Kind, Piece, TokenPieces
from .tokenizer import Tokenizer, common_prefix_length, decode_ids
from .utf8 import open_from

_NEIGHBOURS = 8
"""
The minimum number of context tokens decoded again; at most about twice as many are.

One would suffice where only the first token of a text is spelled differently. Where tokens are
single bytes, eight contain the whole last character. Cutting the context affects the text with
and without the new tokens alike, so the difference stays right.
"""

_BYTE_TOKEN = re.compile("<0x[+0-9A-Fa-f][0-9A-Fa-f]>")


@attrs.define(eq=False)
class _Preview:
    """The text of the complete characters of a run of byte tokens."""

    context: list[int]
    """The last tokens that were decoded, which end with a complete character."""

    shown: int
    """Leading characters of their text that do not belong to the preview."""

    size: int = 0
    """Tokens of the run that have been decoded."""

    text: str = ""


@attrs.define(eq=False)
class TextWindow:
    """Decode new tokens after a few known ones and return the text that they add."""

    _tokenizer: Tokenizer
    _skip_special_tokens: bool
    _pieces: TokenPieces
    # The last tokens, how many characters of their text were returned, and how many are held.
    _context: list[int] = attrs.field(factory=list)
    _shown: int = 0
    _held: int = 0
    # Byte tokens whose run has not ended. One invalid byte turns the whole run into U+FFFD, so
    # nothing in it is final yet.
    _run: list[int] = attrs.field(factory=list)
    # The run's trailing bytes that do not complete a character.
    _open: bytes = b""
    # The last tokens up to the invalid byte, while such a run lasts.
    _bad: list[int] = attrs.field(factory=list)
    # None until first used.
    _preview: _Preview | None = None

    def push(self, ids: Sequence[int]) -> str:
        """Take the next *ids* and return the final text."""
        ready: list[int] = []
        for index in ids:
            piece = self._piece(index)
            if piece.kind is Kind.SKIPPED:
                # It neither ends a run nor may displace real tokens from the context.
                continue
            self._run.append(index)
            if piece.kind is not Kind.BYTE:
                self._open, self._bad = b"", []
            elif not self._bad and self._pieces.byte_fallback and self._breaks(piece.byte):
                # A character has at most four bytes, so these alone are invalid too.
                self._bad = self._run[-4:]
            if piece.kind is not Kind.BYTE or self._bad:
                ready += self._run
                self._run.clear()
                self._preview = None
        return self._advance(ready) if ready else ""

    def flush(self) -> str:
        """Return the held text; the row has ended."""
        ready, self._run = self._run, []
        return self._advance(ready, last=True)

    def peek(self) -> str:
        """What :meth:`flush` would return now."""
        if not self._run and not self._held:
            return ""
        return self._text(self._context + self._run)[self._shown :]

    def preview(self) -> str:
        """The held text without an incomplete last character."""
        if not (self._run and self._pieces.byte_fallback):
            return self.peek().rstrip("\ufffd")
        seen = self._preview
        if seen is None:
            seen = self._preview = _Preview(self._context, self._shown)
        new = self._run[seen.size : len(self._run) - len(self._open)]
        if new:
            seen.text += self._text(seen.context + new)[seen.shown :]
            seen.context, seen.shown, seen.size = new, len(self._text(new)), seen.size + len(new)
        return seen.text

    def _breaks(self, byte: bytes) -> bool:
        """Whether *byte* is invalid UTF-8 at this place of the run."""
        data = self._open + byte
        end = open_from(data)
        self._open = data[end:]
        try:
            data[:end].decode()
        except UnicodeDecodeError:
            return True
        return False

    def _advance(self, ready: list[int], last: bool = False) -> str:
        window = self._context + ready
        text = self._text(window)
        self._held = 0 if last or not window else self._open_end(text, self._piece(window[-1]))
        new = text[self._shown : len(text) - self._held]
        if self._bad:
            # Until the run ends, each further byte adds what it adds after these.
            window, text = self._bad, self._text(self._bad)
        elif len(window) > 2 * _NEIGHBOURS and text != self._text(window[:-1]):
            # Do not cut between tokens without text: some decoders drop spaces until something follows.
            window = window[-_NEIGHBOURS:]
            text = self._text(window)
        self._context, self._shown = window, len(text) - self._held
        return new

    def _open_end(self, text: str, newest: Piece) -> int:
        """The number of trailing characters of *text* that the next token may change."""
        # An incomplete character decodes to one U+FFFD until its last bytes come.
        incomplete = text.endswith("\ufffd") and newest.kind is not Kind.REPLACEMENT and not self._bad
        return newest.open or int(incomplete)

    def _text(self, ids: list[int]) -> str:
        return decode_ids(self._tokenizer, ids, self._skip_special_tokens)

    def _piece(self, index: int) -> Piece:
        known = self._pieces.pieces
        if index not in known:
            known[index] = self._classify(index)
        return known[index]

    def _classify(self, index: int) -> Piece:
        token, alone = self._tokenizer.convert_ids_to_tokens(index), self._text([index])
        # A token may have no text alone (a leading space); a skipped one has some if not skipped.
        if token is None or (not alone and decode_ids(self._tokenizer, [index], False)):
            return Piece(Kind.SKIPPED)
        if isinstance(token, bytes):  # tiktoken's own spelling
            token = token.decode(errors="ignore")
        if _BYTE_TOKEN.fullmatch(token):
            return Piece(Kind.BYTE, bytes([int(token[3:5], base=16)]))
        kind = Kind.REPLACEMENT if "\ufffd" in token else Kind.PLAIN
        # A continuation mark, such as "@@", disappears when the word goes on.
        return Piece(kind, open=len(alone) - common_prefix_length(alone, self._text([index] * 2)))
