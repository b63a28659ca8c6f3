"""
Incremental detokenization.

However the ids are divided, the pieces that :meth:`Detokenizer.push` and :meth:`Detokenizer.flush`
return join to ``tokenizer.decode`` of all the ids. A piece is never taken back, so text that a later
token could still change is held: an incomplete character, a run of byte tokens.
"""

from collections.abc import Sequence

import attrs
from attrs import validators

from .byte_level import ByteLevelText
from .clean_up import CleanUp, cleans_up
from .token_pieces import TokenPieces, pieces_of
from .tokenizer import Tokenizer
from .tokenizer_check import a_tokenizer
from .window import TextWindow


@attrs.define(eq=False)
class _CleanedUp:
    """Another method with the tokenizer's clean-up of spaces applied to its text."""

    _method: ByteLevelText | TextWindow
    _clean_up: CleanUp = attrs.field(factory=CleanUp)

    def push(self, ids: Sequence[int]) -> str:
        return self._clean_up.push(self._method.push(ids))

    def flush(self) -> str:
        return self._clean_up.push(self._method.flush()) + self._clean_up.flush()

    def peek(self) -> str:
        return self._clean_up.peek(self._method.peek())

    def preview(self) -> str:
        return self._clean_up.peek(self._method.preview())


@attrs.define(eq=False)
class Detokenizer:
    """
    The text of one row, as it becomes final.

    Each call decodes a bounded window once or twice, and each distinct id of a tokenizer is decoded
    alone a few times, once: linear in the length of the row. The tokenizer must not change during a
    row.

    Args:
        tokenizer: A Hugging Face tokenizer, fast or slow.

        skip_special_tokens: Leave special tokens out, as in ``tokenizer.decode``.
    """

    tokenizer: Tokenizer = attrs.field(repr=False, validator=a_tokenizer)
    skip_special_tokens: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    _pieces: TokenPieces = attrs.field(kw_only=True, repr=False)
    _method: ByteLevelText | TextWindow | _CleanedUp = attrs.field(init=False, repr=False)

    @_pieces.default
    def _pieces_of_the_tokenizer(self) -> TokenPieces:
        # attrs validates after the defaults, which need valid fields.
        attrs.validate(self)
        return pieces_of(self.tokenizer, self.skip_special_tokens)

    @_method.default
    def _method_of_the_family(self) -> ByteLevelText | TextWindow | _CleanedUp:
        # Again: there is no default where the pieces are given.
        attrs.validate(self)
        if not isinstance(self._pieces, TokenPieces):
            raise TypeError(f"'pieces' must be TokenPieces, those of the tokenizer: got {self._pieces!r}")
        family = ByteLevelText if self._pieces.byte_level else TextWindow
        method = family(self.tokenizer, self.skip_special_tokens, self._pieces)
        return _CleanedUp(method) if cleans_up(self.tokenizer) else method

    def another(self) -> "Detokenizer":
        """A detokenizer for another row, without checking again whether the tokenizer changed."""
        return attrs.evolve(self)

    def push(self, ids: Sequence[int]) -> str:
        """Take the row's next *ids*, one or several, and return the text that has become final."""
        return self._method.push(ids)

    def flush(self) -> str:
        """Return the held text. The row has ended; nothing may be pushed afterwards."""
        return self._method.flush()

    def peek(self) -> str:
        """What :meth:`flush` would return now; decodes the held tokens."""
        return self._method.peek()

    def preview(self) -> str:
        """
        The held text so far, without an incomplete last character.

        Not final: a later token may change it. Decodes the tokens that are new since the last call
        once or twice.
        """
        return self._method.preview()
