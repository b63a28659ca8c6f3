"""Text of a grammar."""

import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeAlias

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.history import History
from ..chain import Composable
from .matcher import Language, Matcher

Languages: TypeAlias = Language | Sequence[Language | None] | None
"""One language for all rows, or one per row; None leaves a row free."""

_MOST_IDLE = 256
"""Walks kept between calls; a batch of more rows starts the others anew each time."""


@attrs.define(eq=False)
class _Walk:
    """A matcher, and the tokens that it has taken."""

    language: Language
    matcher: Matcher
    taken: NDArray[np.int64]
    _mask: Tensor | None = None
    """What may come next, once it has been asked for."""

    def shared(self, ids: NDArray[np.int64]) -> int:
        """How many of *ids*, from the first on, have been taken."""
        n = min(len(self.taken), len(ids))
        differing = np.flatnonzero(self.taken[:n] != ids[:n])
        return int(differing[0]) if len(differing) else n

    def allowed(self, ids: NDArray[np.int64], vocab: int) -> Tensor:
        """Which tokens may follow the generated *ids*, ``[vocab]`` bool."""
        allowed = torch.zeros(vocab, dtype=torch.bool)
        known = self._known(ids)[:vocab]
        allowed[: len(known)] = known
        return allowed

    def only(self, ids: NDArray[np.int64]) -> int | None:
        """The one token that may follow the generated *ids*; None if there are several, or none."""
        allowed = self._known(ids)
        return int(allowed.nonzero()) if allowed.count_nonzero() == 1 else None

    def _known(self, ids: NDArray[np.int64]) -> Tensor:
        """Which of the tokens that the language knows may follow *ids*, ``[tokens]`` bool."""
        left, eos = self._follow(ids), self.language.eos
        if not left and self._mask is None:
            self._mask = self.matcher.mask()
        inside = torch.empty(0, dtype=torch.bool) if left or self._mask is None else self._mask
        allowed = torch.zeros(max(len(inside), 1 + max(eos, default=-1)), dtype=torch.bool)
        allowed[: len(inside)] = inside
        # After an end there is nothing but ends, for a loop that goes on nevertheless.
        allowed[list(eos)] = (not left or left[0] in eos) and self.matcher.finished()
        return allowed

    def _follow(self, ids: NDArray[np.int64]) -> list[int]:
        """Go where *ids* lead. What is left of them begins with an end or with what was refused."""
        shared = self.shared(ids)
        if back := len(self.taken) - shared:
            self.matcher.rewind(back)
        ahead: list[int] = ids[shared:].tolist()
        eos = self.language.eos
        text = list(itertools.takewhile(lambda token: token not in eos, ahead))
        took = self.matcher.advance(text) if text else 0
        if back or took:
            # A copy: the loop goes on writing into its history.
            self.taken, self._mask = ids[: shared + took].copy(), None
        return ahead[took:]


@attrs.define(eq=False)
class _IdleWalks:
    """
    The walks that no call is at.

    Nothing but a cache: any walk can go anywhere. So a pickle holds none of them.
    """

    _walks: list[_Walk] = attrs.field(factory=list)
    """The latest last."""

    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def __reduce__(self) -> tuple[Any, ...]:
        return _IdleWalks, ()

    def take(self, language: Language, ids: NDArray[np.int64]) -> _Walk:
        """A walk for a text of *language* that begins with *ids*, best one that is nearly there."""
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
            # One that shares less than half belongs to another text, which may come back for it.
            if best is not None and 2 * most + 1 >= len(ids):
                self._walks.remove(best)
                return best
        return _Walk(language, language.matcher(), np.empty(0, dtype=np.int64))

    def put(self, walks: list[_Walk]) -> None:
        """Keep *walks*, those of a call's rows in order, for the next call."""
        with self._lock:
            # The first row's last, so that the next call finds it first.
            self._walks += reversed(walks)
            del self._walks[:-_MOST_IDLE]


def _as_languages(value: Languages) -> Language | tuple[Language | None, ...] | None:
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


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
    Allow the tokens that a grammar allows.

    The generated tokens are the text, from the first on; the prompt does not count. Where the
    text may end, the language's end of sequence is allowed besides what may follow; where it
    cannot go on, nothing else is. Logits beyond the tokenizer's vocabulary are forbidden.

    The languages come from :func:`~decodekit.processors.json_schema`,
    :func:`~decodekit.processors.regex` and :func:`~decodekit.processors.lark`, or from any
    other engine behind the protocols of :mod:`decodekit.processors.grammar.matcher`. No-op for None.

    A hard constraint. It leaves no token after a text that is not of the grammar, such as a
    part before it in the chain may force, and where the engine says that nothing fits. Drafts
    end in such columns too, where nobody looks: a token that the grammar refuses is never what
    the target chooses.

    Matchers are kept between calls, each at the end of some text. A column takes back what its
    own text does not share with that and goes on from there, so rejected drafts, rewinds, other
    batches and trees ask for nothing: the result is that of a matcher started anew. Several
    threads may share one.

    Host only: it asks the engine, row by row and column by column.
    """

    keeps_argmax: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    device_safe: ClassVar[bool] = False  # runs an engine on the host

    language: Language | tuple[Language | None, ...] | None = attrs.field(
        converter=_as_languages, validator=_check_languages
    )
    """One for all rows, or one per row; None leaves a row as it is."""

    _idle: _IdleWalks = attrs.field(factory=_IdleWalks, init=False, repr=False)

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
        # Not in a finally: a walk that an error interrupted stands nobody knows where.
        self._idle.put(walks)
        return logits.masked_fill(~allowed.to(logits.device), -torch.inf)

    def forced(self, history: History, most: Tensor) -> list[list[int]]:
        """
        What has to follow each row's tokens: those without an alternative, one after the other.

        An end of sequence is one of them where the text cannot go on, and again behind it.

        Args:
            history: The tokens so far; width 1.

            most: How many are wanted of each row, ``[batch]``; a row with 0 is not looked at.

        Returns:
            The ids, a list a row. Nothing for a row without a language.
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
                text = np.append(text, token)
            walks.append(walk)
        self._idle.put(walks)
        return forced

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
