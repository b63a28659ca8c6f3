"""
Text out of ids, a few at a time.

Whatever the bursts, the pieces that :meth:`Detokenizer.push` and :meth:`Detokenizer.flush` return
join to ``tokenizer.decode`` of all the ids. A piece is never taken back, so what a later token
could still change is held: the first bytes of a character, a run of byte tokens.
"""

import enum
import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

import attrs

from .clean_up import CleanUp, cleans_up
from .per_tokenizer import PerTokenizer
from .utf8 import open_from


class Tokenizer(Protocol):
    """What is asked of a Hugging Face tokenizer, fast or slow."""

    def decode(self, token_ids: list[int], /, **options: Any) -> Any:
        """The text of ids."""
        ...

    def convert_ids_to_tokens(self, ids: int, /) -> Any:
        """The vocabulary's own spelling of one id; None where there is none."""
        ...


@attrs.define(eq=False)
class Detokenizer:
    """
    The text of one row, as it becomes final.

    Costs at most a decode or two of a bounded window per call, and a few of single tokens once per
    distinct id of a tokenizer: linear in the length of the row. The tokenizer is not to change
    while a row lasts.

    Args:
        tokenizer: A Hugging Face tokenizer, fast or slow.

        skip_special_tokens: Leave special tokens out, as in ``tokenizer.decode``.
    """

    tokenizer: Tokenizer = attrs.field(repr=False)
    skip_special_tokens: bool = True
    _vocabulary: "_Vocabulary" = attrs.field(kw_only=True, repr=False)
    _method: "_Bytes | _Window | _Cleaned" = attrs.field(init=False, repr=False)

    @_vocabulary.default
    def _vocabulary_as_it_is_now(self) -> "_Vocabulary":
        return (_SKIPPING if self.skip_special_tokens else _SHOWING).of(self.tokenizer)

    @_method.default
    def _method_of_the_family(self) -> "_Bytes | _Window | _Cleaned":
        family = _Bytes if self._vocabulary.byte_level else _Window
        method = family(self.tokenizer, self.skip_special_tokens, self._vocabulary)
        return _Cleaned(method) if cleans_up(self.tokenizer) else method

    def another(self) -> "Detokenizer":
        """A fresh one for another row, without asking again whether the tokenizer was changed."""
        return attrs.evolve(self)

    def push(self, ids: Sequence[int]) -> str:
        """Take the row's next *ids*, one or a burst, and return the text that has become final."""
        return self._method.push(ids)

    def flush(self) -> str:
        """Return what was held. The row has ended: nothing is to be pushed any more."""
        return self._method.flush()

    def peek(self) -> str:
        """What :meth:`flush` would return now, at the cost of decoding what is held."""
        return self._method.peek()

    def preview(self) -> str:
        """
        What is held, as it looks so far: less the character whose last bytes are still to come.

        A later token may show that it reads otherwise. Costs a decode or two of what is new since
        it was last asked for.
        """
        return self._method.preview()


def agreement(before: str, text: str) -> int:
    """How many characters both begin with: all of *before*, mostly."""
    if text.startswith(before):
        return len(before)
    pairs = enumerate(zip(before, text, strict=False))
    return next((i for i, (one, other) in pairs if one != other), len(text))


def _decode(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool) -> str:
    if not ids:
        return ""
    text: str = tokenizer.decode(
        ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
    )
    return text


def is_byte_level(tokenizer: Any) -> bool:
    """Whether each token of *tokenizer* stands for bytes, spelled as :data:`BYTE_OF` says."""
    return _decoder_steps(tokenizer) == ["ByteLevel"]


def _decoder_steps(tokenizer: Any) -> list[str]:
    """What the tokenizers library does to tokens, step by step; none where it cannot be known."""
    # Whoever calls has a tokenizer, so transformers is loaded already.
    from transformers import PreTrainedTokenizerFast as Fast

    family = type(tokenizer)
    # Some classes (Whisper, CodeGen) rework what the library decodes.
    if any(getattr(family, name, None) is not getattr(Fast, name) for name in ("decode", "_decode")):
        return []
    decoder = tokenizer.backend_tokenizer.decoder
    try:
        state = json.loads(decoder.__getstate__())
    except Exception:  # no decoder at all, or one written in Python, which cannot be pickled
        return []
    return [part["type"] for part in state.get("decoders", [state])]


def _byte_alphabet() -> dict[str, int]:
    # GPT-2's spelling of bytes (Radford et al., 2019): printable Latin-1 characters stand for
    # themselves, the other bytes, in order, for the characters from U+0100 on.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()
"""A character of a byte-level vocabulary to the byte that it stands for."""


class _Kind(enum.Enum):
    SKIPPED = enum.auto()
    BYTE = enum.auto()
    REPLACEMENT = enum.auto()
    PLAIN = enum.auto()


@attrs.frozen(eq=False)
class _Piece:
    """What is known of one token where texts are decoded in windows."""

    kind: _Kind
    byte: bytes = b""
    """Of a byte token."""

    open: int = 0
    """How many characters at its end any token behind it would take away."""


@attrs.frozen(eq=False)
class _Vocabulary:
    """What is known of a tokenizer, each token's part when it was first met."""

    byte_level: bool
    byte_fallback: bool
    bytes_of: dict[int, bytes] = attrs.field(init=False, factory=dict)
    pieces: dict[int, _Piece] = attrs.field(init=False, factory=dict)

    @classmethod
    def of(cls, tokenizer: Any) -> "_Vocabulary":
        steps = _decoder_steps(tokenizer)
        return cls(steps == ["ByteLevel"], "ByteFallback" in steps)


# Whether special tokens are skipped decides what a token is.
_SKIPPING, _SHOWING = PerTokenizer(_Vocabulary.of), PerTokenizer(_Vocabulary.of)


# Byte-level vocabularies: every token is bytes, and the text is the bytes read as UTF-8.


@attrs.define(eq=False)
class _Bytes:
    """Read the tokens' bytes as UTF-8, up to the character that is not complete."""

    _tokenizer: Tokenizer
    _skip_special_tokens: bool
    _vocabulary: _Vocabulary
    _open: bytes = b""

    def push(self, ids: Sequence[int]) -> str:
        data = self._open + b"".join(map(self._bytes_of, ids))
        end = open_from(data)
        self._open = data[end:]
        # Malformed bytes become U+FFFD one for one as in the library: both follow Unicode's
        # "substitution of maximal subparts".
        return data[:end].decode(errors="replace")

    def flush(self) -> str:
        text, self._open = self.peek(), b""
        return text

    def peek(self) -> str:
        return self._open.decode(errors="replace")

    def preview(self) -> str:
        return ""

    def _bytes_of(self, index: int) -> bytes:
        known = self._vocabulary.bytes_of
        if index not in known:
            known[index] = self._spell(index)
        return known[index]

    def _spell(self, index: int) -> bytes:
        # Half a character decodes to U+FFFD: only what is skipped or unknown decodes to nothing.
        if not _decode(self._tokenizer, [index], self._skip_special_tokens):
            return b""
        token: str = self._tokenizer.convert_ids_to_tokens(index)
        # An added token with any character outside of the alphabet stands for itself, whole.
        if any(character not in BYTE_OF for character in token):
            return token.encode()
        return bytes(BYTE_OF[character] for character in token)


# All others: what a token adds to the text is seen by decoding it after its neighbours.

_NEIGHBOURS = 8
"""
Tokens decoded again as context, at least; at most about twice as many.

One would do where the first token of a text is merely spelled differently. Where tokens are
single bytes, eight hold the last character whole. Whatever the cut makes of the tokens behind
it, it makes with and without the new ones alike.
"""

_BYTE_TOKEN = re.compile("<0x[+0-9A-Fa-f][0-9A-Fa-f]>")


@attrs.define(eq=False)
class _Preview:
    """What the whole characters of a run of byte tokens say."""

    context: list[int]
    """The last tokens that were read: whole characters, too."""

    shown: int
    """How many characters of their text are not the preview's."""

    size: int = 0
    """How many tokens of the run were read."""

    text: str = ""


@attrs.define(eq=False)
class _Window:
    """Decode new tokens behind a few that are out already, and return what they add."""

    _tokenizer: Tokenizer
    _skip_special_tokens: bool
    _vocabulary: _Vocabulary
    # The last tokens, how many characters of their text are out, and how many behind those not.
    _context: list[int] = attrs.field(factory=list)
    _shown: int = 0
    _held: int = 0
    # Byte tokens whose run has not ended. One bad byte turns its whole run into U+FFFD, so
    # nothing in it is final, and looking into it would only cost time.
    _run: list[int] = attrs.field(factory=list)
    # What of the run's bytes is no whole character yet.
    _open: bytes = b""
    # The last tokens up to the bad byte, while such a run lasts.
    _bad: list[int] = attrs.field(factory=list)
    # None until somebody asks for it.
    _preview: _Preview | None = None

    def push(self, ids: Sequence[int]) -> str:
        ready: list[int] = []
        for index in ids:
            piece = self._piece(index)
            if piece.kind is _Kind.SKIPPED:
                # It neither ends a run nor may it push real tokens out of the context.
                continue
            self._run.append(index)
            if piece.kind is not _Kind.BYTE:
                self._open, self._bad = b"", []
            elif not self._bad and self._vocabulary.byte_fallback and self._breaks(piece.byte):
                # A character is no longer than four bytes, so these alone are as bad.
                self._bad = self._run[-4:]
            if piece.kind is not _Kind.BYTE or self._bad:
                ready += self._run
                self._run.clear()
                self._preview = None
        return self._advance(ready) if ready else ""

    def flush(self) -> str:
        ready, self._run = self._run, []
        return self._advance(ready, last=True)

    def peek(self) -> str:
        if not self._run and not self._held:
            return ""
        return self._text(self._context + self._run)[self._shown :]

    def preview(self) -> str:
        if not (self._run and self._vocabulary.byte_fallback):
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
        """Whether *byte* is one that no character of the run's can have there."""
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
            # As long as the run lasts, each of its bytes adds what it adds behind these.
            window, text = self._bad, self._text(self._bad)
        elif len(window) > 2 * _NEIGHBOURS and text != self._text(window[:-1]):
            # Not between silent tokens, though: some decoders drop spaces until something follows.
            window = window[-_NEIGHBOURS:]
            text = self._text(window)
        self._context, self._shown = window, len(text) - self._held
        return new

    def _open_end(self, text: str, newest: _Piece) -> int:
        """How many characters at the end of *text* the next token may change."""
        # The first bytes of a character read as one U+FFFD, until the others come.
        incomplete = text.endswith("\ufffd") and newest.kind is not _Kind.REPLACEMENT and not self._bad
        return newest.open or int(incomplete)

    def _text(self, ids: list[int]) -> str:
        return _decode(self._tokenizer, ids, self._skip_special_tokens)

    def _piece(self, index: int) -> _Piece:
        known = self._vocabulary.pieces
        if index not in known:
            known[index] = self._classify(index)
        return known[index]

    def _classify(self, index: int) -> _Piece:
        token, alone = self._tokenizer.convert_ids_to_tokens(index), self._text([index])
        # A token may well be silent when alone (a leading space). A skipped one is silent just here.
        if token is None or (not alone and _decode(self._tokenizer, [index], False)):
            return _Piece(_Kind.SKIPPED)
        if isinstance(token, bytes):  # tiktoken's own spelling
            token = token.decode(errors="ignore")
        if _BYTE_TOKEN.fullmatch(token):
            return _Piece(_Kind.BYTE, bytes([int(token[3:5], base=16)]))
        kind = _Kind.REPLACEMENT if "\ufffd" in token else _Kind.PLAIN
        # "@@" at the end of a piece, say, goes away when the word goes on.
        return _Piece(kind, open=len(alone) - agreement(alone, self._text([index] * 2)))


@attrs.define(eq=False)
class _Cleaned:
    """What another method gives, without the spaces that the tokenizer takes out of it."""

    _method: _Bytes | _Window
    _clean_up: CleanUp = attrs.field(factory=CleanUp)

    def push(self, ids: Sequence[int]) -> str:
        return self._clean_up.push(self._method.push(ids))

    def flush(self) -> str:
        return self._clean_up.push(self._method.flush()) + self._clean_up.flush()

    def peek(self) -> str:
        return self._clean_up.peek(self._method.peek())

    def preview(self) -> str:
        return self._clean_up.peek(self._method.preview())
