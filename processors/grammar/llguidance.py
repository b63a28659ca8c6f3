"""
Languages that the engine llguidance walks.

`llguidance <https://github.com/guidance-ai/llguidance>`_ is optional,
``pip install "decodekit[grammar]"``, and is imported when a language is made.
"""

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import attrs
import numpy as np
import torch
from torch import Tensor

from ..parameter import as_token_ids
from .matcher import Language, Matcher


def json_schema(
    schema: Mapping[str, Any] | str,
    tokenizer: Any,
    *,
    eos: int | Iterable[int] | None = None,
    whitespace: bool = True,
) -> Language:
    """
    The JSON texts that *schema* allows, for :class:`~decodekit.processors.Grammar`.

    Args:
        schema: A JSON schema, or the text of one. Keywords that the engine does not know are
            refused. ``{}`` allows any JSON.

        tokenizer: A fast Hugging Face tokenizer, which is not to change afterwards.

        eos: The tokens that end a text; the tokenizer's own if not given.

        whitespace: Whether spaces and line breaks may stand between the parts. They may go on
            for ever, and some models do.

    Raises:
        ImportError: llguidance is not installed.

        TypeError: A schema that is neither, or a tokenizer that is no fast one.

        ValueError: The engine refuses the schema or the tokenizer; the message says why.
    """
    if not isinstance(schema, str | Mapping):
        _refuse("schema", "a JSON schema, a mapping or its text", schema)
    source = schema if isinstance(schema, str) else dict(schema)

    def in_engine_form(matcher: Any) -> Any:
        return matcher.grammar_from_json_schema(source, defaults={"whitespace_flexible": whitespace})

    return _language("json_schema", source, in_engine_form, tokenizer, eos)


def regex(pattern: str, tokenizer: Any, *, eos: int | Iterable[int] | None = None) -> Language:
    r"""
    The texts that *pattern* matches as a whole, for :class:`~decodekit.processors.Grammar`.

    Args:
        pattern: A regular expression in the syntax of Rust's ``regex``, without ``\b`` and
            without looking around. ``\d`` is any digit of Unicode.

        tokenizer: As for :func:`json_schema`.

        eos: As for :func:`json_schema`.

    Raises:
        ImportError, TypeError, ValueError: As :func:`json_schema`.
    """
    if not isinstance(pattern, str):
        _refuse("pattern", "a string", pattern)
    return _language("regex", pattern, lambda matcher: matcher.grammar_from_regex(pattern), tokenizer, eos)


def lark(grammar: str, tokenizer: Any, *, eos: int | Iterable[int] | None = None) -> Language:
    """
    The texts of a context-free grammar, for :class:`~decodekit.processors.Grammar`.

    Args:
        grammar: In the engine's `dialect of Lark
            <https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md>`_, from the
            rule ``start`` on.

        tokenizer: As for :func:`json_schema`.

        eos: As for :func:`json_schema`.

    Raises:
        ImportError, TypeError, ValueError: As :func:`json_schema`.
    """
    if not isinstance(grammar, str):
        _refuse("grammar", "a string", grammar)
    return _language("lark", grammar, lambda matcher: matcher.grammar_from_lark(grammar), tokenizer, eos)


def _engine() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise ImportError('grammars need llguidance: pip install "decodekit[grammar]"') from error
    return llguidance


def _refuse(name: str, rule: str, value: object) -> NoReturn:
    raise TypeError(f"'{name}' must be {rule}: got {value!r}, a {type(value).__name__}")


def _language(
    kind: str,
    source: Any,
    in_engine_form: Callable[[Any], Any],
    tokenizer: Any,
    eos: int | Iterable[int] | None,
) -> Language:
    if not hasattr(tokenizer, "backend_tokenizer"):
        _refuse("tokenizer", "a fast Hugging Face tokenizer", tokenizer)
    if eos is None:
        eos = tokenizer.eos_token_id
    if eos is None or not (ends := as_token_ids(eos)):
        raise ValueError("'eos' must be given where the tokenizer has no end of sequence: got none")
    try:
        grammar = in_engine_form(_engine().LLMatcher)
    except ValueError as error:
        raise ValueError(f"llguidance refuses the {kind} {source!r}: {error}") from error
    return LLGuidance(kind, source, tokenizer, ends, grammar)


_TABLES: "weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], Any]]" = weakref.WeakKeyDictionary()
"""The engine's view of each tokenizer, by its ends. Making one takes up to a second."""


def _tables(tokenizer: Any, eos: tuple[int, ...]) -> Any:
    known = _TABLES.setdefault(tokenizer, {})
    if eos not in known:
        from llguidance.hf import from_tokenizer

        try:
            known[eos] = from_tokenizer(tokenizer, eos_token=list(eos))
        except ValueError as error:
            raise ValueError(f"llguidance refuses the tokenizer with the ends {eos}: {error}") from error
    return known[eos]


def _first_line(message: str) -> str:
    # What follows is the state of the engine, a page of it.
    return message.partition("\n<state>")[0].strip()


@attrs.frozen(eq=False)
class LLGuidance:
    """
    A :class:`~decodekit.processors.grammar.matcher.Language` over the vocabulary of a tokenizer.

    The functions of this module make them.
    """

    kind: str
    """Which of the functions."""

    source: Any
    """What it was given."""

    tokenizer: Any = attrs.field(repr=False)
    """A fast Hugging Face tokenizer."""

    eos: tuple[int, ...]
    """The tokens that end a text, ascending."""

    grammar: str = attrs.field(repr=False)
    """The source in the engine's own form."""

    _start: Any = attrs.field(init=False, repr=False)
    """A text's beginning. Nobody moves it; its copies share what they learn about the vocabulary."""

    @_start.default
    def _compile(self) -> Any:
        # Level 0 is silent: what goes wrong is in the errors.
        start = _engine().LLMatcher(_tables(self.tokenizer, self.eos), self.grammar, log_level=0)
        if not start.is_error():
            start.compute_bitmask()  # fails where there is no text at all
        if start.is_error():
            error = _first_line(start.get_error())
            raise ValueError(f"llguidance refuses the {self.kind} {self.source!r}: {error}")
        return start

    def __reduce__(self) -> tuple[Any, ...]:
        # The engine's objects stay at home.
        return LLGuidance, (self.kind, self.source, self.tokenizer, self.eos, self.grammar)

    def matcher(self) -> Matcher:
        """A matcher at the beginning of a text."""
        return _GuidedMatcher(self._start, _tables(self.tokenizer, self.eos).vocab_size)


@attrs.define(eq=False)
class _GuidedMatcher:
    """
    A matcher of the engine's, kept out of its error state.

    That state is for ever, and a limit of the engine's (``llguidance.LLParserLimits``) leads
    there. Then a warning says so, and the text is one that cannot go on; another may fare better.
    """

    _start: Any
    _vocab_size: int
    _ids: list[int] = attrs.field(factory=list, init=False)
    _at: Any = attrs.field(init=False)

    @_at.default
    def _begin(self) -> Any:
        return self._start.deep_copy()

    def mask(self) -> Tensor:
        """See :class:`~decodekit.processors.grammar.matcher.Matcher`."""
        bits = np.frombuffer(self._at.compute_bitmask(), dtype=np.uint8)
        if self._failed():
            return torch.zeros(self._vocab_size, dtype=torch.bool)
        unpacked = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
        return torch.from_numpy(unpacked).view(torch.bool)

    def advance(self, ids: Sequence[int]) -> int:
        """See :class:`~decodekit.processors.grammar.matcher.Matcher`."""
        # To the engine an id that it does not know is an error, not a refusal.
        known = list(itertools.takewhile(lambda token: 0 <= token < self._vocab_size, ids))
        took: int = self._at.try_consume_tokens(known)
        self._ids += known[:took]
        self._failed()
        return took

    def rewind(self, n: int) -> None:
        """See :class:`~decodekit.processors.grammar.matcher.Matcher`."""
        del self._ids[len(self._ids) - n :]
        # Some grammars (max_tokens, stop) cannot be walked backwards.
        if not self._at.rollback(n):
            self._restart()

    def finished(self) -> bool:
        """See :class:`~decodekit.processors.grammar.matcher.Matcher`."""
        accepts: bool = self._at.is_accepting()
        return accepts

    def _failed(self) -> bool:
        failed: bool = self._at.is_error()
        if failed:
            reason = _first_line(self._at.get_error())
            warnings.warn(f"llguidance gives up a text: {reason}", RuntimeWarning, stacklevel=2)
            self._restart()
        return failed

    def _restart(self) -> None:
        self._at = self._begin()
        self._at.try_consume_tokens(self._ids)
