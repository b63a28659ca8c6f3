"""Grammar-constrained tokens."""

import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeAlias, cast

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.fork_safe_lock import fork_safe_lock
from ...decoding.history import History
from ...decoding.validation import is_iterable
from ..chain import Composable
from .matcher import Language, Matcher

Languages: TypeAlias = Language | Sequence[Language | None] | None
"""One language for all rows, or one per row; None leaves a row unconstrained."""

_MOST_IDLE = 256
"""Matchers cached between calls; further rows of a larger batch start anew each time."""


@attrs.define(eq=False)
class _Walk:
    """A matcher and the tokens it has consumed."""

    language: Language
    matcher: Matcher
    taken: NDArray[np.int64]
    _mask: Tensor | None = None
    """Cached mask of the next tokens."""

    _refused: set[int] = attrs.field(factory=set)
    """Next tokens that the matcher has refused: an engine may take as long for a refusal as for a mask."""

    def shared(self, ids: NDArray[np.int64]) -> int:
        """Length of the common prefix of *ids* and the consumed tokens."""
        n = min(len(self.taken), len(ids))
        differing = np.flatnonzero(self.taken[:n] != ids[:n])
        return int(differing[0]) if len(differing) else n

    def allowed(self, ids: NDArray[np.int64], vocab: int) -> Tensor:
        """Mask of the tokens that may follow the generated *ids*, ``[vocab]`` bool."""
        allowed = torch.zeros(vocab, dtype=torch.bool)
        known = self._known(ids)[:vocab]
        allowed[: len(known)] = known
        return allowed

    def only(self, ids: NDArray[np.int64]) -> int | None:
        """The only token that may follow the generated *ids*; None if several or none may."""
        allowed = self._known(ids)
        return int(allowed.nonzero()) if allowed.count_nonzero() == 1 else None

    def _known(self, ids: NDArray[np.int64]) -> Tensor:
        """Mask over the language's vocabulary of the tokens that may follow *ids*, ``[tokens]`` bool."""
        left, eos = self._follow(ids), self.language.eos
        if not left and self._mask is None:
            self._mask = self.matcher.mask()
        inside = torch.empty(0, dtype=torch.bool) if left or self._mask is None else self._mask
        allowed = torch.zeros(max(len(inside), 1 + max(eos, default=-1)), dtype=torch.bool)
        allowed[: len(inside)] = inside
        # After an end of sequence only ends are allowed, for a loop that continues anyway.
        allowed[list(eos)] = (not left or left[0] in eos) and self.matcher.finished()
        return allowed

    def _follow(self, ids: NDArray[np.int64]) -> list[int]:
        """Move the matcher along *ids*; returns the rest, from an end or a refused token on."""
        shared = self.shared(ids)
        if back := len(self.taken) - shared:
            self.matcher.rewind(back)
        ahead: list[int] = ids[shared:].tolist()
        eos = self.language.eos
        text = list(itertools.takewhile(lambda token: token not in eos, ahead))
        if not back and text and text[0] in self._refused:
            return ahead
        took = self.matcher.advance(text) if text else 0
        if back or took:
            # A copy: the loop writes into its history later.
            self.taken, self._mask, self._refused = ids[: shared + took].copy(), None, set()
        if took < len(text):
            self._refused.add(text[took])
        return ahead[took:]


@attrs.define(eq=False)
class _IdleWalks:
    """
    Matchers not in use by a call.

    Only a cache: any matcher can move to any text. Not pickled.
    """

    _walks: list[_Walk] = attrs.field(factory=list)
    """Most recent last."""

    _lock: threading.Lock = attrs.field(factory=fork_safe_lock)

    def __reduce__(self) -> tuple[Any, ...]:
        return _IdleWalks, ()

    def take(self, language: Language, ids: NDArray[np.int64]) -> _Walk:
        """A matcher of *language*, preferably the one closest to *ids*."""
        best, most = None, -1
        with self._lock:
            for walk in reversed(self._walks):
                if walk.language is not language:
                    continue
                shared = walk.shared(ids)
                if shared > most:
                    best, most = walk, shared
                if shared + 1 >= len(ids):
                    break
            # With less than half in common it belongs to another text, which may need it again.
            if best is not None and 2 * most + 1 >= len(ids):
                self._walks.remove(best)
                return best
        return _Walk(language, language.matcher(), np.empty(0, dtype=np.int64))

    def put(self, walks: list[_Walk]) -> None:
        """Keep *walks*, in the order of a call's rows, for the next call."""
        with self._lock:
            # Reversed, so that the next call finds the first row's first.
            self._walks += reversed(walks)
            del self._walks[:-_MOST_IDLE]


def _as_languages(value: Languages) -> Language | tuple[Language | None, ...] | None:
    if is_iterable(value) and not isinstance(value, str):
        return tuple(cast("Sequence[Language | None]", value))
    return cast("Language | None", value)


def _check_languages(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    for language in value if isinstance(value, tuple) else (value,):
        if language is not None and (not isinstance(language, Language) or isinstance(language, type)):
            raise TypeError(
                f"'{attribute.name}' must be a language with 'eos' and 'matcher', None, or a list of such, "
                f"one per row: got {language!r}, a {type(language).__name__}"
            )
    if value == ():
        raise ValueError(f"'{attribute.name}' must be one per row: got none")


@attrs.frozen(eq=False)
class Grammar(Composable):
    """
    Allow only the tokens that continue a text of a grammar.

    The text is all generated tokens; the prompt does not count. Where the text may end, the
    language's end of sequence is allowed too; where it cannot continue, nothing else is. Logits
    beyond the tokenizer's vocabulary are forbidden.

    The languages come from :func:`~decodekit.processors.json_schema`,
    :func:`~decodekit.processors.regex` and :func:`~decodekit.processors.lark`, or from any
    engine that implements :mod:`decodekit.processors.grammar.matcher`. No-op for None.

    A hard constraint. It leaves no token after a text outside the grammar, which another
    processor may force, and where the engine allows none. Columns after a refused draft token
    have none either, which is harmless: the target never accepts such a token. The engine refuses a
    token once for all of these columns.

    Matchers are cached between calls, each at the end of some text. A column rewinds one to the
    common prefix and continues from there, so rejected drafts, rewinds, other batches and trees
    need no special handling: the result equals that of a new matcher. Thread-safe.

    Host only: calls the engine for each row and column.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False  # runs an engine on the host

    language: Language | tuple[Language | None, ...] | None = attrs.field(
        converter=_as_languages, validator=_check_languages
    )
    """One for all rows, or one per row; None leaves a row unchanged."""

    _idle: _IdleWalks = attrs.field(factory=_IdleWalks, init=False, repr=False)

    @property
    def row_independent(self) -> bool:
        """Whether one language is for all rows: a matcher that another row used gives the same result."""
        return not isinstance(self.language, tuple)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Mask ``[batch, width, vocab]`` logits, which are not modified."""
        batch, width, vocab = logits.shape
        languages = self._of_rows(batch)
        _check_ends(languages, vocab)
        if all(language is None for language in languages):
            return logits
        ids, prompt, length = history.ids.cpu().numpy(), history.prompt.tolist(), history.length.tolist()
        allowed = torch.ones(logits.shape, dtype=torch.bool)
        walks = []
        for row, language in enumerate(languages):
            if language is None:
                continue
            paths = range(width) if ids.shape[1] > 1 else [0] * width
            texts = [ids[row, path, prompt[row] : end] for path, end in zip(paths, length[row], strict=True)]
            walk = self._idle.take(language, texts[0])
            for column, text in enumerate(texts):
                allowed[row, column] = walk.allowed(text, vocab)
            walks.append(walk)
        # Not in a finally: after an error the matcher's position is unknown.
        self._idle.put(walks)
        return logits.masked_fill(~allowed.to(logits.device), -torch.inf)

    def forced(self, history: History, most: Tensor) -> list[list[int]]:
        """
        The tokens that must follow in each row: each one without an alternative.

        Where the text cannot continue, the end of sequence is the last one.

        Args:
            history: The tokens so far; width 1.

            most: Maximum number per row, ``[batch]``; a row with 0 is skipped.

        Returns:
            A list of ids per row, empty for a row without a language.
        """
        ids, prompt = history.ids.cpu().numpy(), history.prompt.tolist()
        length = history.length[:, 0].tolist()
        forced: list[list[int]] = [[] for _ in length]
        walks = []
        for row, (language, wanted) in enumerate(zip(self._of_rows(len(length)), most.tolist(), strict=True)):
            if language is None or wanted == 0:
                continue
            text = ids[row, 0, prompt[row] : length[row]]
            walk = self._idle.take(language, text)
            while len(forced[row]) < wanted and (token := walk.only(text)) is not None:
                forced[row].append(token)
                if token in language.eos:
                    break
                text = np.append(text, token)
            walks.append(walk)
        self._idle.put(walks)
        return forced

    def ends(self, row: int) -> tuple[int, ...]:
        """The end-of-sequence ids of *row*; none for a row without a language."""
        language = self.language[row] if isinstance(self.language, tuple) else self.language
        return () if language is None else language.eos

    def _of_rows(self, batch: int) -> tuple[Language | None, ...]:
        languages = self.language if isinstance(self.language, tuple) else (self.language,) * batch
        if len(languages) != batch:
            raise ValueError(f"'language' must have one value per row: got {len(languages)} for {batch} rows")
        return languages


def _check_ends(languages: Iterable[Language | None], vocab: int) -> None:
    for language in languages:
        if language is not None and language.eos and max(language.eos) >= vocab:
            raise ValueError(
                f"token ids must be < {vocab}, the size of the vocabulary: got {max(language.eos)}"
            )
