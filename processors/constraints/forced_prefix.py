"""Forced beginning of the generated text."""

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias, cast

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.text.piece_index import PieceIndex
from ...decoding.text.token_bytes import has_vocabulary
from ...decoding.validation import is_iterable
from ..chain import Composable
from .masking import keep_only_in

Prefix: TypeAlias = str | bytes | None
"""Text, or its UTF-8 bytes, which may end inside a character; None or empty for no constraint."""

Prefixes: TypeAlias = Prefix | Sequence[Prefix]
"""One prefix for all rows, or one per row."""


@attrs.define(eq=False)
class _Spelling:
    """The tokens that spell one prefix, from each position in it."""

    prefix: bytes
    index: PieceIndex
    _complete: list[bool] = attrs.field(init=False)
    """Whether tokens can complete the prefix from each position on."""

    _allowed: dict[int, Tensor] = attrs.field(init=False, factory=dict)

    @_complete.default
    def _positions_from_which_it_can_be_completed(self) -> list[bool]:
        size = len(self.prefix)
        complete = [False] * size + [True]
        for start in reversed(range(size)):
            complete[start] = self.index.can_extend(self.prefix[start:]) or any(
                complete[end] for end, _ in self.index.beginnings(self.prefix, start)
            )
        return complete

    def can_be_spelled(self) -> bool:
        return self._complete[0]

    def position(self, ids: Tensor) -> int | None:
        """How much of the prefix *ids* spell; None if their text does not begin with it."""
        size, at = len(self.prefix), 0
        # Most tokens are longer than a byte: the later ones are rarely looked at.
        near, rest = ids[:size], ids[size:]
        for token in itertools.chain(near.tolist(), (int(one) for one in rest)):
            piece = self.index.bytes_of.get(token, b"")
            end = min(at + len(piece), size)
            if self.prefix[at:end] != piece[: end - at]:
                return None
            at = end
            if at == size:
                break
        return at

    def allowed(self, start: int) -> Tensor:
        """Ids of the tokens that continue the prefix from *start*, ``[n]`` int64."""
        if start not in self._allowed:
            found = list(self.index.extending(self.prefix[start:]))
            for end, ids in self.index.beginnings(self.prefix, start):
                if self._complete[end]:
                    found += ids
            self._allowed[start] = torch.tensor(sorted(found), dtype=torch.int64)
        return self._allowed[start]


def _as_prefixes(value: Prefixes) -> Any:
    if isinstance(value, str | bytes):
        return _as_bytes(value)
    if value is None or not is_iterable(value):
        return _as_bytes(cast("Prefix", value))
    return tuple(map(_as_bytes, value))


def _as_bytes(value: Prefix) -> Any:
    if isinstance(value, str):
        return value.encode()
    return b"" if value is None else value


@attrs.frozen(eq=False)
class ForcedPrefix(Composable):
    """
    Let the text of the generated tokens begin with *prefix*, in any tokenization.

    While the prefix is not complete, a token is allowed if its bytes are a prefix of the rest, from
    which tokens can spell what is then left, or if they extend the rest: after ``"http"``, a prefix
    ``":"`` allows ``":"`` and ``"://"``. Special tokens and the end of sequence wait. Then it is the
    identity. No-op for an empty prefix or None.

    The text is what the tokens add inside a text: SentencePiece's ``▁the`` adds ``" the"``, also
    where decoding drops the space of a first word.

    A hard constraint. It leaves no token after a text that does not begin with the prefix, which
    another processor may force; behind a rejected draft token that is harmless.

    Host only: follows the new tokens of each row and column until the prefix is complete. The allowed
    tokens of each position are found by binary search in the sorted vocabulary, once.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False  # follows bytes on the host

    prefix: bytes | tuple[bytes, ...] = attrs.field(converter=_as_prefixes)
    """One for all rows, or one per row. A string is encoded as UTF-8."""

    tokenizer: Any = attrs.field(repr=False, validator=has_vocabulary)
    """A Hugging Face tokenizer, fast or slow."""

    _spellings: tuple[_Spelling, ...] = attrs.field(init=False, repr=False)

    @prefix.validator
    def _check_prefix(self, attribute: "attrs.Attribute[Any]", value: object) -> None:
        for prefix in value if isinstance(value, tuple) else (value,):
            if not isinstance(prefix, bytes):
                raise TypeError(
                    f"'prefix' must be a string, bytes or None, or one of these per row: got {prefix!r}, "
                    f"a {type(prefix).__name__}"
                )
        if value == ():
            raise ValueError("'prefix' must be one per row: got none")

    def __attrs_post_init__(self) -> None:
        """Refuse a prefix that no tokens spell."""
        index = PieceIndex.of(self.tokenizer)
        prefixes = self.prefix if isinstance(self.prefix, tuple) else (self.prefix,)
        made = {prefix: _Spelling(prefix, index) for prefix in prefixes}
        for prefix, spelling in made.items():
            if not spelling.can_be_spelled():
                raise ValueError(f"'prefix' must be text that the tokenizer has tokens for: got {prefix!r}")
        object.__setattr__(self, "_spellings", tuple(made[prefix] for prefix in prefixes))

    def __reduce__(self) -> tuple[Any, ...]:
        return ForcedPrefix, (self.prefix, self.tokenizer)

    @property
    def row_independent(self) -> bool:
        """Whether one prefix is for all rows."""
        return not isinstance(self.prefix, tuple)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask other tokens of ``[batch, width, vocab]`` logits, which are not modified."""
        batch, width, _ = logits.shape
        per_row = isinstance(self.prefix, tuple)
        if per_row and len(self._spellings) != batch:
            raise ValueError(
                f"'prefix' must have one value per row: got {len(self._spellings)} for {batch} rows"
            )
        prompt = history.prompt.tolist()
        allowed: dict[tuple[int, int], Tensor] = {}
        for row, spelling in enumerate(self._spellings if per_row else self._spellings * batch):
            size = len(spelling.prefix)
            for column in range(width if size else 0):
                start = spelling.position(history.before(row, column)[prompt[row] :])
                if start is None or start < size:
                    allowed[row, column] = _NONE if start is None else spelling.allowed(start)
        return keep_only_in(logits, allowed)


_NONE = torch.empty(0, dtype=torch.int64)
