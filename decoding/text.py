"""
Text out of ids, a few at a time.

Whatever the bursts, the pieces that :meth:`Detokenizer.push` and :meth:`Detokenizer.flush` return
join to ``tokenizer.decode`` of all the ids. A piece is never taken back, so what a later token
could still change is held: the first bytes of a character, a run of byte tokens.
"""

import codecs
import enum
import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

import attrs


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

    Costs a few decodes of bounded windows per call, and two single-token decodes per distinct id:
    linear in the length of the row. The tokenizer is not to change meanwhile.

    Args:
        tokenizer: A Hugging Face tokenizer, fast or slow.

        skip_special_tokens: Leave special tokens out, as in ``tokenizer.decode``.
    """

    tokenizer: Tokenizer = attrs.field(repr=False)
    skip_special_tokens: bool = True
    _method: "_Bytes | _Window" = attrs.field(init=False, repr=False)

    @_method.default
    def _method_of_the_family(self) -> "_Bytes | _Window":
        family = _Bytes if is_byte_level(self.tokenizer) else _Window
        return family(self.tokenizer, self.skip_special_tokens)

    def push(self, ids: Sequence[int]) -> str:
        """Take the row's next *ids*, one or a burst, and return the text that has become final."""
        return self._method.push(ids)

    def flush(self) -> str:
        """Return what was held. The row has ended: nothing is to be pushed any more."""
        return self._method.flush()

    def peek(self) -> str:
        """What :meth:`flush` would return now, at the cost of decoding what is held."""
        return self._method.peek()


def _decode(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool) -> str:
    if not ids:
        return ""
    text: str = tokenizer.decode(
        ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
    )
    return text


# Byte-level vocabularies: every token is bytes, and the text is the bytes read as UTF-8.


def is_byte_level(tokenizer: Any) -> bool:
    """Whether each token of *tokenizer* stands for bytes, spelled as :data:`BYTE_OF` says."""
    # Whoever calls has a tokenizer, so transformers is loaded already.
    from transformers import PreTrainedTokenizerFast as Fast

    family = type(tokenizer)
    # Some classes (Whisper, CodeGen) rework what the library decodes; theirs is not plain bytes.
    if any(getattr(family, name, None) is not getattr(Fast, name) for name in ("decode", "_decode")):
        return False
    decoder = tokenizer.backend_tokenizer.decoder
    try:
        state = json.loads(decoder.__getstate__())
    except Exception:  # no decoder at all, or one written in Python, which cannot be pickled
        return False
    return [part["type"] for part in state.get("decoders", [state])] == ["ByteLevel"]


def _byte_alphabet() -> dict[str, int]:
    # GPT-2's spelling of bytes (Radford et al., 2019): printable Latin-1 characters stand for
    # themselves, the other bytes, in order, for the characters from U+0100 on.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()
"""A character of a byte-level vocabulary to the byte that it stands for."""


@attrs.define(eq=False)
class _Bytes:
    """Feed the tokens' bytes to an incremental UTF-8 decoder."""

    _tokenizer: Tokenizer
    _skip_special_tokens: bool
    _bytes: dict[int, bytes] = attrs.field(factory=dict)
    # Malformed bytes become U+FFFD one for one as in the library: both follow Unicode's
    # "substitution of maximal subparts".
    _utf8: codecs.IncrementalDecoder = attrs.field(
        factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def push(self, ids: Sequence[int]) -> str:
        return self._utf8.decode(b"".join(map(self._bytes_of, ids)))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)

    def peek(self) -> str:
        state = self._utf8.getstate()
        text = self.flush()
        self._utf8.setstate(state)
        return text

    def _bytes_of(self, index: int) -> bytes:
        if index not in self._bytes:
            self._bytes[index] = self._spell(index)
        return self._bytes[index]

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
Tokens decoded again as context.

One would do where the first token of a text is merely spelled differently. Where tokens are
single bytes, eight hold the last character whole. Whatever the cut makes of the tokens behind
it, it makes with and without the new ones alike.
"""

_BYTE_TOKEN = re.compile("<0x[+0-9A-Fa-f][0-9A-Fa-f]>")


class _Kind(enum.Enum):
    SKIPPED = enum.auto()
    BYTE = enum.auto()
    REPLACEMENT = enum.auto()
    PLAIN = enum.auto()


@attrs.define(eq=False)
class _Window:
    """Decode new tokens behind a few that are out already, and return what they add."""

    _tokenizer: Tokenizer
    _skip_special_tokens: bool
    _kinds: dict[int, _Kind] = attrs.field(factory=dict)
    # The last tokens that are out, and how many characters at their end are not.
    _context: list[int] = attrs.field(factory=list)
    _held: int = 0
    # Byte tokens whose run has not ended. One bad byte turns its whole run into U+FFFD, so
    # nothing in it is final, and looking into it would only cost time.
    _run: list[int] = attrs.field(factory=list)

    def push(self, ids: Sequence[int]) -> str:
        ready: list[int] = []
        for index in ids:
            kind = self._kind(index)
            if kind is _Kind.SKIPPED:
                # It neither ends a run nor may it push real tokens out of the context.
                continue
            self._run.append(index)
            if kind is not _Kind.BYTE:
                ready += self._run
                self._run.clear()
        return self._advance(ready) if ready else ""

    def flush(self) -> str:
        ready, self._run = self._run, []
        return self._advance(ready, last=True)

    def peek(self) -> str:
        if not self._run and not self._held:
            return ""
        shown = len(self._text(self._context)) - self._held
        return self._text(self._context + self._run)[shown:]

    def _advance(self, ready: list[int], last: bool = False) -> str:
        shown = len(self._text(self._context)) - self._held
        window = self._context + ready
        text = self._text(window)
        # The first bytes of a character read as one U+FFFD, until the others come.
        incomplete = text.endswith("\ufffd") and self._kind(window[-1]) is not _Kind.REPLACEMENT
        self._held = int(incomplete and not last)
        self._context = window[-_NEIGHBOURS:]
        return text[shown : len(text) - self._held]

    def _text(self, ids: list[int]) -> str:
        return _decode(self._tokenizer, ids, self._skip_special_tokens)

    def _kind(self, index: int) -> _Kind:
        if index not in self._kinds:
            self._kinds[index] = self._classify(index)
        return self._kinds[index]

    def _classify(self, index: int) -> _Kind:
        token = self._tokenizer.convert_ids_to_tokens(index)
        # A token may well be silent when alone (a leading space). A skipped one is silent just here.
        if token is None or (not self._text([index]) and _decode(self._tokenizer, [index], False)):
            return _Kind.SKIPPED
        if _BYTE_TOKEN.fullmatch(token):
            return _Kind.BYTE
        return _Kind.REPLACEMENT if "\ufffd" in token else _Kind.PLAIN
