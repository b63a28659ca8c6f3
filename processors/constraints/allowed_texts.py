"""Generated text that is one of several."""

from collections.abc import Iterable
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.text.piece_index import PieceIndex, prefix_range
from ...decoding.text.token_bytes import has_vocabulary
from ...decoding.validation import is_iterable
from ..chain import Composable
from ..parameter import as_token_ids, at_least_one
from .masking import keep_only_in


def _as_texts(values: Iterable[str | bytes]) -> Any:
    if isinstance(values, str | bytes) or not is_iterable(values):
        return values
    return tuple(dict.fromkeys(one.encode() if isinstance(one, str) else one for one in values))


def _as_eos(value: Any) -> tuple[int, ...]:
    return () if value is None else as_token_ids(value)


@attrs.frozen(eq=False)
class AllowedTexts(Composable):
    """
    Let the generated text be one of *texts*, in any tokenization, and the end of sequence after it.

    Where one text is a prefix of another, both the end and the continuation are allowed. A text is what
    the tokens add after the prompt: after ``"Answer:"`` usually ``" yes"``, with its space. Special tokens
    add none, nor does the end of sequence, whatever its text. A hard constraint: it leaves no token after a
    text that is no prefix of an allowed one, which another processor may force; behind a rejected draft token
    that is harmless. No neutral value.

    Host only: the tokens allowed after each prefix of a text are found once.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False  # follows bytes on the host

    texts: tuple[bytes, ...] = attrs.field(converter=_as_texts)
    """The allowed texts. Strings are encoded as UTF-8."""

    tokenizer: Any = attrs.field(repr=False, validator=has_vocabulary)
    """A Hugging Face tokenizer, fast or slow."""

    eos: tuple[int, ...] = attrs.field(converter=_as_eos, validator=at_least_one)
    """End-of-sequence token ids, ascending. By default the tokenizer's."""

    _index: PieceIndex = attrs.field(init=False, repr=False)
    _ordered: list[bytes] = attrs.field(init=False, repr=False)
    _complete: list[list[bool]] = attrs.field(init=False, repr=False)
    """By text in order: whether tokens can complete it from each position on."""

    _allowed: dict[bytes, Tensor] = attrs.field(init=False, repr=False, factory=dict)
    """Cached ids of the tokens that may follow a text, ``[n]`` int64."""

    @eos.default
    def _eos_of_the_tokenizer(self) -> Any:
        has_vocabulary(self, attrs.fields(AllowedTexts).tokenizer, self.tokenizer)
        return self.tokenizer.eos_token_id

    @texts.validator
    def _check_texts(self, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not isinstance(value, tuple) or not all(isinstance(text, bytes) for text in value):
            raise TypeError(f"'texts' must be a list of strings or bytes: got {value!r}")
        if not value or b"" in value:
            raise ValueError(f"'texts' must be one or several texts that are not empty: got {list(value)}")

    def __attrs_post_init__(self) -> None:
        """Refuse texts that no tokens spell."""
        index, ordered = PieceIndex.of(self.tokenizer).without(self.eos), sorted(self.texts)
        complete = [_completions(text, index) for text in ordered]
        for text, from_each in zip(ordered, complete, strict=True):
            if not from_each[0]:
                raise ValueError(
                    f"'texts' must be texts that the tokenizer has tokens for, besides 'eos': got {text!r}"
                )
        for name, value in (("_index", index), ("_ordered", ordered), ("_complete", complete)):
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return AllowedTexts, (self.texts, self.tokenizer, self.eos)

    @property
    def row_independent(self) -> bool:
        """True: the texts are for all rows."""
        return True

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask all other tokens of ``[batch, width, vocab]`` logits, which are not modified."""
        batch, width, _ = logits.shape
        prompt = history.prompt.tolist()
        return keep_only_in(
            logits,
            {
                (row, column): self._after(history.before(row, column)[prompt[row] :].tolist())
                for row in range(batch)
                for column in range(width)
            },
        )

    def _after(self, ids: list[int]) -> Tensor:
        ends = (at for at, token in enumerate(ids) if token in self.eos)
        end = next(ends, None)
        text = self._index.text_of(ids if end is None else ids[:end])
        if end is not None:
            # After an end only ends are allowed, for a loop that continues anyway.
            return torch.tensor(self.eos if text in self.texts else (), dtype=torch.int64)
        if text not in self._allowed:
            found = self._continuing(text)
            if not found:
                # Not kept: there is no bound on texts that are not allowed.
                return torch.empty(0, dtype=torch.int64)
            self._allowed[text] = torch.tensor(sorted(found), dtype=torch.int64)
        return self._allowed[text]

    def _continuing(self, text: bytes) -> set[int]:
        """The tokens after which *text* is still the beginning of an allowed one, or is one and has ended."""
        found: set[int] = set()
        for at in range(*prefix_range(self._ordered, text)):
            whole, complete = self._ordered[at], self._complete[at]
            if whole == text:
                found.update(self.eos)
            for end, ids in self._index.beginnings(whole, len(text)):
                if complete[end]:
                    found.update(ids)
        return found


def _completions(text: bytes, index: PieceIndex) -> list[bool]:
    """Whether tokens can spell the rest of *text* from each position on."""
    complete = [False] * len(text) + [True]
    for start in reversed(range(len(text))):
        complete[start] = any(complete[end] for end, _ in index.beginnings(text, start))
    return complete
