"""
JSON schemas, regular expressions and Lark grammars by llguidance.

`llguidance <https://github.com/guidance-ai/llguidance>`_ is optional,
``pip install "decodekit[grammar]"``, and is imported when a language is made.
"""

import itertools
import json
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..parameter import as_token_ids
from .deep_stack import with_deep_stack
from .json_integers import check_integers
from .json_names import names_are_spelled_once
from .matcher import Language, Matcher
from .shared_start import SharedStart

_LARGEST = 2**20
"""Characters of a grammar in the engine's form."""

_STACK_PER_CHARACTER = 1024
"""
Bytes. The engine follows references and rules by recursion, and ends the process where the stack ends.

Chains of the shortest references in JSON take 280 bytes a character, of the shortest rules in Lark 300.
"""

_UNFORCED = '%llguidance {"no_forcing": true}'
"""Where one text must follow, any tokens that spell it; without it those of the tokenizer alone."""

_WRITTEN_ONCE = {"json_allow_general_unicode_escapes": False, "json_allowed_escapes": '\\"nrtbf'}
"""Each character of a string has one spelling, but control characters without a letter have none."""


def json_schema(
    schema: Mapping[str, Any] | str,
    tokenizer: Any,
    *,
    eos: int | Iterable[int] | None = None,
    whitespace: bool | None = None,
) -> Language:
    r"""
    The language of JSON texts that match *schema*, for :class:`~decodekit.processors.Grammar`.

    Args:
        schema: A JSON schema as a mapping or text. Keywords of JSON Schema that the engine does not
            implement are refused; words that are no keywords are ignored, as JSON Schema says. ``{}``
            allows any JSON. Where an object may have names beside those that the schema gives, nothing is
            written as ``\uXXXX``, by which a given name could be written as another, so that strings lack
            control characters without a letter; such names may repeat. Integers that it compares with must
            be exact as float64, as all from -2^53 to 2^53 are, and below 2^63 in magnitude; exclusive
            bounds below 2^53. Its ``"x-guidance"`` may hold options of llguidance; with ``"lenient"``, a
            warning names the keywords that it leaves out.

        tokenizer: A fast Hugging Face tokenizer, which must not change afterwards.

        eos: End-of-sequence token ids; None for the tokenizer's.

        whitespace: Whether whitespace may separate the parts. It is unlimited, and some models
            generate it endlessly. None for what the schema's ``"x-guidance"`` says, else True.

    Raises:
        ImportError: llguidance is not installed.

        TypeError: *schema* is neither, or the tokenizer is not a fast one.

        ValueError: The engine refuses the schema or the tokenizer, with its reason in the message, or would
            round an integer of the schema.
    """
    if not isinstance(schema, str | Mapping):
        _refuse("schema", "a JSON schema, a mapping or its text", schema)
    source = schema if isinstance(schema, str) else dict(schema)
    parsed = _parsed(schema) if isinstance(schema, str) else source
    check_integers(parsed)
    # The engine applies defaults, then the schema's own options, then overrides.
    defaults = {"whitespace_flexible": True, **(_WRITTEN_ONCE if names_are_spelled_once(parsed) else {})}
    given = {} if whitespace is None else {"whitespace_flexible": whitespace, "whitespace_pattern": None}

    def in_engine_form(matcher: Any) -> Any:
        return matcher.grammar_from_json_schema(source, defaults=defaults, overrides=given)

    return _language("json_schema", source, in_engine_form, tokenizer, eos)


def regex(pattern: str, tokenizer: Any, *, eos: int | Iterable[int] | None = None) -> Language:
    r"""
    The language of texts fully matched by *pattern*, for :class:`~decodekit.processors.Grammar`.

    Args:
        pattern: A regular expression in the syntax of Rust's ``regex``, without ``\b`` and
            look-around. ``\d`` matches any Unicode digit.

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
    The language of a context-free grammar, for :class:`~decodekit.processors.Grammar`.

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


def _parsed(schema: str) -> Any:
    """The values of a schema's text; None where the engine refuses the text."""
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        return None


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
    if len(grammar) > _LARGEST:
        raise ValueError(f"a {kind} must have at most {_LARGEST} characters: got {len(grammar)}")
    language = LLGuidance(kind, source, tokenizer, ends, grammar)
    for warning in language.warnings():
        warnings.warn(f"llguidance on the {kind} {source!r}: {warning}", UserWarning, stacklevel=3)
    return language


_TABLES: "weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], Any]]" = weakref.WeakKeyDictionary()
"""The engine's tables of each tokenizer, by end-of-sequence ids. Built in up to a second."""


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
    # The rest is a dump of the engine's state.
    return message.partition("\n<state>")[0].strip()


@attrs.frozen(eq=False)
class LLGuidance:
    """
    A :class:`~decodekit.processors.grammar.matcher.Language` over the vocabulary of a tokenizer.

    Made by the functions of this module.
    """

    kind: str
    """Name of the function that made it."""

    source: Any
    """Argument of that function."""

    tokenizer: Any = attrs.field(repr=False)
    """A fast Hugging Face tokenizer."""

    eos: tuple[int, ...]
    """End-of-sequence token ids, ascending."""

    grammar: str = attrs.field(repr=False)
    """The source in the engine's own form."""

    _start: SharedStart = attrs.field(init=False, repr=False)

    @_start.default
    def _make_start(self) -> SharedStart:
        return SharedStart(self._compile)

    def _compile(self) -> Any:
        start = self._compiled(self.grammar)
        if start.is_error():
            error = _first_line(start.get_error())
            raise ValueError(f"llguidance refuses the {self.kind} {self.source!r}: {error}")
        return start

    def _compiled(self, grammar: str) -> Any:
        tables = _tables(self.tokenizer, self.eos)

        def compile_it() -> Any:
            # Level 0 is silent: errors are raised.
            start = _engine().LLMatcher(tables, grammar, log_level=0)
            if not start.is_error():
                start.compute_bitmask()  # fails for an empty language
            return start

        return with_deep_stack(compile_it, _STACK_PER_CHARACTER * len(grammar))

    @cached_property
    def unforced(self) -> Any:
        """A matcher of the same language at the start of a text whose masks have all tokens that it takes."""
        return self._compiled(_without_forcing(self.grammar))

    def __reduce__(self) -> tuple[Any, ...]:
        # The engine's objects are rebuilt when unpickled.
        return LLGuidance, (self.kind, self.source, self.tokenizer, self.eos, self.grammar)

    def warnings(self) -> list[str]:
        """What the engine warns of, such as keywords that a lenient schema lets it leave out."""
        return list(self._start.matcher.get_grammar_warnings())

    def matcher(self) -> Matcher:
        """A matcher at the start of a text."""
        return _GuidedMatcher(self, self._start, _tables(self.tokenizer, self.eos).vocab_size)


def _without_forcing(grammar: str) -> str:
    """*grammar*, in the engine's form, with masks of all tokens that it takes."""
    if not grammar.startswith("{"):
        return f"{grammar}\n{_UNFORCED}"
    (only,) = json.loads(grammar)["grammars"]
    own = only["lark_grammar"] or f"start: %json {json.dumps(only['json_schema'])}"
    return f"{own}\n{_UNFORCED}"


@attrs.define(eq=False)
class _GuidedMatcher:
    """
    An engine matcher that recovers from the engine's error state.

    That state is permanent and is entered at a limit of the engine
    (``llguidance.LLParserLimits``). If the limit counts what other texts have used, the text goes on
    with a new start. Otherwise a warning is issued and the text cannot continue; other texts are
    unaffected.
    """

    _language: LLGuidance
    _start: SharedStart
    _vocab_size: int
    _ids: list[int] = attrs.field(factory=list, init=False)
    _used: Any = attrs.field(init=False)
    """The matcher that this one was copied from."""

    _at: Any = attrs.field(init=False)

    _has_mask: bool = attrs.field(default=False, init=False)
    """Whether the mask was made where it is now, for which the lexer must not have failed."""

    @_used.default
    def _current(self) -> Any:
        return self._start.matcher

    @_at.default
    def _begin(self) -> Any:
        return self._used.deep_copy()

    def mask(self) -> Tensor:
        """See :class:`~decodekit.processors.grammar.matcher.Matcher`."""
        bits = np.frombuffer(
            self._tried(lambda: self._at.compute_bitmask(), lambda bits: True), dtype=np.uint8
        )
        if self._failed():
            return torch.zeros(self._vocab_size, dtype=torch.bool)
        self._has_mask = True
        unpacked = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
        if np.count_nonzero(unpacked) == 1 and not self._takes(int(unpacked.argmax())):
            unpacked = self._without_forcing()
        return torch.from_numpy(unpacked).view(torch.bool)

    def _takes(self, token: int) -> bool:
        """
        Whether the engine takes the only *token* of a mask.

        Of a text that must follow, the mask has the tokenizer's own first token. Where the tokenizer changes
        the text (a normalizer), or takes it for a special token, that token does not spell it.
        """
        if token in self._language.eos:
            return bool(self._at.is_accepting())
        return bool(self._at.validate_tokens([token]) == 1)

    def _without_forcing(self) -> NDArray[np.uint8]:
        matcher = self._language.unforced.deep_copy()
        matcher.try_consume_tokens(self._ids)
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little")

    def advance(self, ids: Sequence[int]) -> int:
        """See :class:`~decodekit.processors.grammar.matcher.Matcher`."""
        # The engine treats an unknown id as an error, not as a refusal.
        known = list(itertools.takewhile(lambda token: 0 <= token < self._vocab_size, ids))
        self._has_mask = False
        took: int = self._tried(
            lambda: self._at.try_consume_tokens(known), lambda number: number == len(known)
        )
        self._ids += known[:took]
        self._failed()
        return took

    def rewind(self, n: int) -> None:
        """See :class:`~decodekit.processors.grammar.matcher.Matcher`."""
        del self._ids[len(self._ids) - n :]
        self._has_mask = False
        # Some grammars (max_tokens, stop) cannot roll back.
        if not self._at.rollback(n):
            self._restart()

    def finished(self) -> bool:
        """See :class:`~decodekit.processors.grammar.matcher.Matcher`."""
        # Asking whether the lexer failed takes as long as a mask.
        accepts: bool = self._tried(lambda: self._at.is_accepting(), lambda yes: yes or self._has_mask)
        return accepts

    def _tried(self, step: Callable[[], Any], is_clear: Callable[[Any], bool]) -> Any:
        """
        The result of *step*, tried again from the current start and then from a new one if the lexer failed.

        A failed lexer refuses tokens without an error too, so only a result that *is_clear* is sure.
        """
        result = step()
        for _ in range(2):
            sure = is_clear(result) and not self._at.is_error()
            if sure or not self._start.replaces(self._used):
                break
            self._replay()
            result = step()
        return result

    def _failed(self) -> bool:
        failed: bool = self._at.is_error()
        if failed:
            reason = _first_line(self._at.get_error())
            warnings.warn(f"llguidance gives up a text: {reason}", RuntimeWarning, stacklevel=2)
            self._restart()
        return failed

    def _restart(self) -> None:
        self._tried(self._replay, lambda number: number == len(self._ids))

    def _replay(self) -> int:
        self._used = self._current()
        self._at = self._begin()
        self._has_mask = False
        took: int = self._at.try_consume_tokens(self._ids)
        return took
