"""llguidance as engine of JSON schemas, regular expressions and Lark grammars."""

import builtins
import json
import pickle
import random
import re
from typing import Any

import llguidance
import pytest
import torch
from tokenizers import Tokenizer, normalizers
from transformers import PreTrainedTokenizerFast

from decodekit.processors import Grammar, Language, json_schema, lark, regex

from ..by_hand import after, kept
from .languages import PERSON, tokenizer


def ids(text: str) -> list[int]:
    """Token by token of one character each."""
    found: list[int] = tokenizer().convert_tokens_to_ids(list(text))
    return found


def pieces(language: Language, text: str) -> set[str]:
    """The tokens that may follow *text*."""
    vocab = len(tokenizer())
    allowed = kept(Grammar(language), [1 / vocab] * vocab, after(ids(text)))
    return set(tokenizer().convert_ids_to_tokens(allowed))


def holds(language: Language, text: str) -> bool:
    """Whether the language has *text*."""
    matcher, tokens = language.matcher(), tokenizer().encode(text)
    return matcher.advance(tokens) == len(tokens) and matcher.finished()


def limit_engine(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Make the engine's matchers with *limits*."""
    engine, given = llguidance.LLMatcher, llguidance.LLParserLimits(**limits)

    class Limited:
        grammar_from_lark = staticmethod(engine.grammar_from_lark)
        grammar_from_regex = staticmethod(engine.grammar_from_regex)

        def __new__(cls, *args: Any, **named: Any) -> Any:
            return engine(*args, **named, limits=given)

    monkeypatch.setattr(llguidance, "LLMatcher", Limited)


class TestRegex:
    def test_allows_what_may_follow(self) -> None:
        """The end besides what goes on, and alone where nothing does."""
        language = regex("ab?", tokenizer())

        assert {"a"} == pieces(language, "")
        assert {"b", "<end>"} == pieces(language, "a")
        assert {"<end>"} == pieces(language, "ab")
        assert set() == pieces(language, "b")

    @pytest.mark.parametrize(
        ("pattern", "text", "expected"),
        [
            pytest.param("a", "aa", False, id="as-a-whole"),
            pytest.param(r"\d", "٣", True, id="digits-of-unicode"),
            pytest.param(".", "\n", False, id="dot-is-no-line-break"),
            pytest.param("a/b", "a/b", True, id="slash"),
            pytest.param("é", "é", True, id="two-bytes"),
        ],
    )
    def test_dialect(self, pattern: str, text: str, expected: bool) -> None:
        """What the documentation says of it."""
        assert expected == holds(regex(pattern, tokenizer()), text)


class TestJsonSchema:
    def test_a_schema_or_its_text(self) -> None:
        """Both are the same language."""
        for schema in (PERSON, json.dumps(PERSON)):
            assert holds(json_schema(schema, tokenizer()), '{"name": "Zoë", "age": 31}')
            assert not holds(json_schema(schema, tokenizer()), '{"name": "Zoë", "age": 151}')

    def test_any_json(self) -> None:
        """The empty schema."""
        language = json_schema({}, tokenizer())

        assert all(holds(language, text) for text in ("[1, null]", '{"a": {}}', "true", '"x"'))

    def test_whitespace(self) -> None:
        """Between the parts, if it is let."""
        spaced = '{"name": "Zoë", "age": 31}'

        assert not holds(json_schema(PERSON, tokenizer(), whitespace=False), spaced)
        assert holds(json_schema(PERSON, tokenizer(), whitespace=False), spaced.replace(" ", ""))

    @pytest.mark.parametrize("options", [{"whitespace_flexible": False}, {"whitespace_pattern": "-*"}])
    def test_whitespace_that_is_given_overrides_the_schema(self, options: dict[str, Any]) -> None:
        """Else the schema's own options hold."""
        schema = {"type": "array", "x-guidance": options}
        texts = ("[1,2]", "[1, 2]", "[1-,2]")

        def held(**given: bool) -> list[bool]:
            return [holds(json_schema(schema, tokenizer(), **given), text) for text in texts]

        assert [True, False, "whitespace_pattern" in options] == held()
        assert [True, True, False] == held(whitespace=True)
        assert [True, False, False] == held(whitespace=False)

    def test_integers_that_are_exact(self) -> None:
        """All up to 2^53, on both sides, and of larger ones those that float64 holds."""
        for bound in (2**53, -(2**53), 2**53 + 2, 2**60, -(2**60), 2**63 - 1024, 1024 - 2**63):
            language = json_schema({"enum": [bound]}, tokenizer())

            assert holds(language, str(bound))
            assert not holds(language, str(bound - 1))

    def test_bounds_that_are_exact(self) -> None:
        """Beyond 2^53 too."""
        least = json_schema({"type": "integer", "minimum": 2**53 + 2}, tokenizer())
        most = json_schema({"type": "integer", "maximum": 2**60}, tokenizer())

        assert [False, True, True] == [holds(least, str(2**53 + n)) for n in (1, 2, 3)]
        assert [True, True, False] == [holds(most, str(2**60 + n)) for n in (-1, 0, 1)]

    def test_exclusive_bounds_that_are_exact(self) -> None:
        """The integer next to them is what the engine compares with."""
        above = json_schema({"type": "integer", "exclusiveMinimum": 2**53 - 1}, tokenizer())
        below = json_schema({"type": "integer", "exclusiveMaximum": 1 - 2**53}, tokenizer())

        assert [False, True, True] == [holds(above, str(2**53 - 1 + n)) for n in (0, 1, 2)]
        assert [False, True, True] == [holds(below, str(1 - 2**53 - n)) for n in (0, 1, 2)]

    def test_limits_of_lengths(self) -> None:
        """Any that the engine reads: no text is as long."""
        language = json_schema({"type": "array", "maxItems": 2**63 - 1}, tokenizer())

        assert holds(language, "[1,2]")

    @pytest.mark.parametrize(
        ("schema", "path"),
        [
            pytest.param({"const": 2**53 + 1}, "#/const", id="const"),
            pytest.param({"const": {"a/b": [0, -(2**53) - 1]}}, "#/const/a~1b/1", id="inside-a-value"),
            pytest.param({"items": {"enum": ["a", 2**63]}}, "#/items/enum/1", id="enum"),
            pytest.param(
                {"properties": {"minimum": {"minimum": 2**60 + 1}}},
                "#/properties/minimum/minimum",
                id="bound",
            ),
            pytest.param({"exclusiveMinimum": 2**53}, "#/exclusiveMinimum", id="exclusive-minimum"),
            pytest.param({"exclusiveMaximum": -(2**53)}, "#/exclusiveMaximum", id="exclusive-maximum"),
            # These would end the process.
            pytest.param({"exclusiveMinimum": 2.0**53}, "#/exclusiveMinimum", id="exclusive-float"),
            pytest.param({"minimum": 2**53, "exclusiveMinimum": True}, "#/minimum", id="draft-4"),
            pytest.param({"maximum": -(2**53), "exclusiveMaximum": True}, "#/maximum", id="draft-4-maximum"),
            # llguidance ends the process for an integer of these.
            pytest.param({"minimum": -1e19, "maximum": -1e19}, "#/minimum", id="float-bounds"),
            pytest.param({"type": "integer", "enum": [-1e19]}, "#/enum/0", id="float-value"),
            pytest.param({"const": -(2**63)}, "#/const", id="const-of-64-bits"),
            pytest.param({"enum": [-(10**400)]}, "#/enum/0", id="beyond-float64"),
            pytest.param({"anyOf": [{}, {"multipleOf": 2**53 + 1}]}, "#/anyOf/1/multipleOf", id="multiple"),
            pytest.param({"$defs": {"const": {"minItems": 2**64}}}, "#/$defs/const/minItems", id="length"),
            # A reference to what is no schema elsewhere makes it one.
            pytest.param(
                {"$ref": "#/default", "default": {"type": "integer", "enum": [-1e19]}},
                "#/default/enum/0",
                id="default",
            ),
            pytest.param(
                {"items": [{"$ref": "#/examples/0"}], "examples": [{"const": -(2**63)}]},
                "#/examples/0/const",
                id="example",
            ),
            pytest.param(
                {"$ref": "#/$defs", "$defs": {"type": "integer", "enum": [-1e19]}},
                "#/$defs/enum/0",
                id="table",
            ),
            pytest.param(
                {"$id": "http://a/", "$ref": "http://a/#/%64efault", "default": {"const": 2**53 + 1}},
                "#/default/const",
                id="address",
            ),
        ],
    )
    def test_refuses_integers_that_the_engine_rounds(self, schema: Any, path: str) -> None:
        """It reads them as float64. In a mapping and in a text; the message says where."""
        for source in (schema, json.dumps(schema)):
            with pytest.raises(
                ValueError, match=rf"integers that float64 holds .*: got -?\d+ at '{re.escape(path)}'"
            ):
                json_schema(source, tokenizer())

    def test_takes_large_integers_that_it_does_not_compare_with(self) -> None:
        """Annotations, and properties named as keywords."""
        schema = {"default": 2**60, "properties": {"const": {"examples": [2**60]}}}

        assert holds(json_schema(schema, tokenizer()), '{"const": 1}')

    @pytest.mark.parametrize(
        ("schema", "texts"),
        [
            ({"properties": {"a": {"type": "integer"}}}, {'{"a":1}': True, r'{"\u0061":"x"}': False}),
            ({"properties": {"é": {"type": "integer"}}}, {'{"é":1}': True, r'{"\u00e9":"x"}': False}),
            ({"properties": {"a": False}}, {'{"b":1}': True, r'{"\u0061":1}': False}),
            (
                {"patternProperties": {"^a": {"type": "integer"}}},
                {'{"ab":1}': True, r'{"\u0061b":"x"}': False},
            ),
            # No other name is left.
            (
                {"properties": {"a": {"type": "string"}}, "additionalProperties": False},
                {r'{"a":"\u0001"}': True, r'{"\u0061":1}': False},
            ),
            # A control character has no other spelling.
            ({"properties": {"a": {"const": "\x01"}}, "required": ["a"]}, {r'{"a":"\u0001"}': True}),
            ({"properties": {"a": {"const": '\n"'}}, "required": ["a"]}, {r'{"a":"\n\""}': True}),
        ],
    )
    def test_no_name_is_spelled_as_another(self, schema: Any, texts: dict[str, bool]) -> None:
        """With a value that is not its own."""
        for source in (schema, json.dumps(schema)):
            language = json_schema({"type": "object", **schema} if source is schema else source, tokenizer())

            assert texts == {text: holds(language, text) for text in texts}

    @pytest.mark.parametrize("link", ["items", "anyOf", "allOf", "$ref", "properties"])
    def test_takes_long_chains_of_references(self, link: str) -> None:
        """The engine follows them by recursion; on a usual stack it would end the process."""
        chain: dict[str, Any] = {"a3000": {"type": "null"}}
        for number in range(3000):
            following: Any = {"$ref": f"#/$defs/a{number + 1}"}
            chain[f"a{number}"] = {
                "items": {"items": following},
                "anyOf": {"anyOf": [following]},
                "allOf": {"allOf": [following]},
                "$ref": following,
                "properties": {"properties": {"a": following}, "required": ["a"], "type": "object"},
            }[link]
        language = json_schema({"$ref": "#/$defs/a0", "$defs": chain}, tokenizer())

        assert {"items": "[[", "properties": '{"'}.get(link, "n")[0] in pieces(language, "")

    def test_refuses_a_schema_that_is_too_long(self) -> None:
        """For a stack that is large enough."""
        with pytest.raises(ValueError, match="a json_schema must have at most 1048576 characters: got 1048"):
            json_schema({"const": "a" * 2**20}, tokenizer())

    def test_refuses_a_schema_that_holds_itself(self) -> None:
        """The engine would end the process."""
        schema: dict[str, Any] = {}
        schema["items"] = schema

        with pytest.raises(ValueError, match="must not be nested more deeply"):
            json_schema(schema, tokenizer())

    def test_shows_what_the_engine_warns_of(self) -> None:
        """Once, where the schema is given; what was left out does not constrain."""
        schema = {"type": "string", "not": {"const": "a"}, "x-guidance": {"lenient": True}}

        with pytest.warns(
            UserWarning, match=r"llguidance on the json_schema .*: Unimplemented keys: \[\"not\"\]"
        ) as caught:
            language = json_schema(schema, tokenizer())

        assert [__file__] == [warning.filename for warning in caught]
        assert holds(pickle.loads(pickle.dumps(language)), '"a"')


class TestEnds:
    def test_may_be_given(self) -> None:
        """In place of the tokenizer's own; a token with a spelling is then no part of any text."""
        end = tokenizer().convert_tokens_to_ids("<also>")
        language = regex("ab?", tokenizer(), eos=[*ids("b"), end])

        assert {"b", "<also>"} == pieces(language, "a")
        assert {"b", "<also>"} == pieces(language, "ab")

    def test_have_to_be_given_to_a_tokenizer_without(self) -> None:
        """A text would never end."""
        without = pickle.loads(pickle.dumps(tokenizer()))
        without.eos_token = None

        assert (1,) == regex("a", without, eos=1).eos
        for eos in (None, []):
            with pytest.raises(ValueError, match="'eos' must be given where the tokenizer has no end"):
                regex("a", without, eos=eos)

    def test_have_to_be_tokens(self) -> None:
        """The engine's own message."""
        with pytest.raises(ValueError, match=r"the tokenizer with the ends \(10000,\): .*out of range"):
            regex("a", tokenizer(), eos=10_000)


class TestRefuses:
    @pytest.mark.parametrize(
        ("make", "source", "reason"),
        [
            pytest.param(regex, "(", "unclosed group", id="regex"),
            pytest.param(regex, "(?=a)", "look-around", id="regex-looks-around"),
            pytest.param(regex, r"[^\s\S]", "NoExtension", id="regex-of-nothing"),
            pytest.param(json_schema, {"type": "word"}, "Invalid type: word", id="schema"),
            pytest.param(json_schema, {"not": {}}, 'Unimplemented keys: ["not"]', id="schema-unknown-key"),
            pytest.param(json_schema, {"enum": []}, "anyOf is empty", id="schema-of-nothing"),
            pytest.param(json_schema, "{", "EOF while parsing", id="schema-no-json"),
            pytest.param(json_schema, {"enum": [1j]}, "not JSON serializable", id="schema-no-json-values"),
            pytest.param(lark, "start: word", 'unknown name: "word"', id="lark"),
        ],
    )
    def test_what_does_not_compile(self, make: Any, source: Any, reason: str) -> None:
        """At construction, with the source and the engine's reason, not its inner state."""
        message = re.escape(f"llguidance refuses the {make.__name__} {source!r}: ")
        with pytest.raises(ValueError, match=f"(?s){message}.*{re.escape(reason)}") as caught:
            make(source, tokenizer())

        assert "<state>" not in str(caught.value)

    @pytest.mark.parametrize(
        ("make", "source", "rule"),
        [
            (regex, 3, "'pattern' must be a string: got 3, a int"),
            (lark, None, "'grammar' must be a string: got None, a NoneType"),
            (json_schema, [1], "'schema' must be a JSON schema, a mapping or its text: got [1], a list"),
        ],
    )
    def test_other_types(self, make: Any, source: Any, rule: str) -> None:
        """A mistake of the caller's."""
        with pytest.raises(TypeError, match=re.escape(rule)):
            make(source, tokenizer())

    def test_what_is_no_fast_tokenizer(self) -> None:
        """The engine reads the tokens' bytes from a fast one alone."""
        with pytest.raises(TypeError, match="'tokenizer' must be a fast Hugging Face tokenizer: got 'gpt2'"):
            regex("a", "gpt2")

    def test_without_the_engine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error says what to install."""
        real = builtins.__import__

        def without(name: str, *rest: Any, **named: Any) -> Any:
            if name.partition(".")[0] == "llguidance":
                raise ModuleNotFoundError(name)
            return real(name, *rest, **named)

        monkeypatch.setattr(builtins, "__import__", without)

        with pytest.raises(ImportError, match=re.escape('pip install "decodekit[grammar]"')):
            regex("a", tokenizer())


class TestMatcher:
    @pytest.mark.parametrize(
        "language",
        [
            pytest.param(lark('start: "(" start ")" start | ""', tokenizer()), id="nested"),
            pytest.param(lark('start: a "x"\na[max_tokens=3]: /[ab]*/', tokenizer()), id="no-way-back"),
            pytest.param(regex("[a-z]+@[a-z]{2,5}[.](com|org)", tokenizer()), id="regex"),
            pytest.param(json_schema(PERSON, tokenizer()), id="json"),
        ],
    )
    def test_rewound_is_as_never_gone_there(self, language: Language) -> None:
        """Also where the engine itself cannot walk backwards."""
        dice, matcher = random.Random(3), language.matcher()
        text: list[int] = []
        for _ in range(120):
            if back := dice.randint(0, len(text)) if dice.random() < 0.25 else 0:
                matcher.rewind(back)
                del text[len(text) - back :]
            new = language.matcher()
            assert len(text) == new.advance(text)
            expected, may_end = new.mask(), new.finished()

            assert torch.equal(expected, matcher.mask())
            assert may_end == matcher.finished()
            expected[list(language.eos)] = False
            candidates = expected.nonzero()[:, 0].tolist()
            token = dice.choice(candidates) if candidates else 1
            took = matcher.advance([token, -1, token])
            assert bool(candidates) == took
            text += [token] * took

    def test_refusals_are_no_errors(self) -> None:
        """What the engine calls an error for ever is taken for a refusal."""
        matcher = regex("ab*", tokenizer()).matcher()
        a, b, c = ids("abc")

        assert 2 == matcher.advance([a, b, c, b])
        assert 0 == matcher.advance([c])
        assert 0 == matcher.advance([-1])
        assert 1 == matcher.advance([b, 10**12])
        assert 0 == matcher.advance([-(10**12)])
        assert matcher.finished()
        matcher.rewind(3)
        assert not matcher.finished()
        assert 1 == matcher.advance([a])

    def test_a_limit_over_all_texts_ends_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The engine counts states of the lexer over all texts: beyond the limit there is a new lexer."""
        # One state for each set of places of the last "a"s: a text of 24 tokens makes up to 220.
        pattern = "(?s:.*a.{9})"
        unlimited = regex(pattern, tokenizer())
        limit_engine(monkeypatch, max_lexer_states=900)
        language, dice = regex(pattern, tokenizer()), random.Random(3)
        resting, whole = language.matcher(), language.matcher()
        assert 1 == resting.advance(ids("c"))
        assert 10 == whole.advance(ids("abbbbbbbbb"))

        for _ in range(20):
            matcher, expected = language.matcher(), unlimited.matcher()
            for token in ids("".join(dice.choices("ab", k=24))):
                assert torch.equal(expected.mask(), matcher.mask())
                assert 1 == expected.advance([token]) == matcher.advance([token])
                assert expected.finished() == matcher.finished()
            matcher.rewind(20)
            expected.rewind(20)
            assert torch.equal(expected.mask(), matcher.mask())

        # Those that began with the first lexer, which refuses without an error.
        assert whole.finished()
        assert 3 == resting.advance(ids("aab"))
        assert not resting.finished()
        assert resting.mask()[ids("a")].all()

    def test_a_text_beyond_that_limit_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Alone and with a warning: a new lexer does not hold it either. The next text begins."""
        limit_engine(monkeypatch, max_lexer_states=100)
        language, dice = regex("(?s:.*a.{9})", tokenizer()), random.Random(3)

        for _ in range(2):
            matcher = language.matcher()
            assert matcher.mask().any()
            assert 60 == matcher.advance(ids("".join(dice.choices("ab", k=60))))
            with pytest.warns(RuntimeWarning, match="gives up a text: .*too many states"):
                assert not matcher.mask().any()

    def test_a_limit_of_the_engine_ends_a_text_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may end, if that makes it a text, but not go on; a warning says why. Shorter ones may."""
        limit_engine(monkeypatch, step_max_items=20)
        language = lark('start: start start | "a" | "b" start', tokenizer())
        processor, even = Grammar(language), [1 / len(tokenizer())] * len(tokenizer())

        for text, expected in (("aaaaaaaa", [tokenizer().eos_token_id]), ("aaaaaaab", [])):
            with pytest.warns(RuntimeWarning, match=r"gives up a text: .*Too many items \(limit 20"):
                assert expected == kept(processor, even, after(ids(text)))

        assert {0, *ids("ab")} == set(kept(processor, even, after(ids("a"))))


class TestTokenizations:
    """Where one text must follow, the engine wants the tokenizer's own tokens."""

    @staticmethod
    def text(language: Language, tokenizer: Any) -> str:
        """The text that the masks lead to, by their last token; it has to end."""
        matcher, ids = language.matcher(), []
        for _ in range(40):
            mask = matcher.mask().nonzero().flatten().tolist()
            allowed = [token for token in mask if token not in language.eos]
            for token in allowed:
                assert matcher.advance([token]) == 1
                matcher.rewind(1)
            assert torch.equal(matcher.mask(), after_ids(language, ids).mask())
            if not allowed:
                break
            ids.append(allowed[-1])
            assert matcher.advance(ids[-1:]) == 1
        assert matcher.finished()
        return str(tokenizer.decode(ids))

    @pytest.mark.parametrize("text", ["cafe\u0301", "\u212b", "<also>", "<end>", "né", "a né b", "plain"])
    @pytest.mark.parametrize("kind", ["regex", "lark", "enum", "name"])
    def test_are_taken_where_the_tokenizers_own_does_not_spell_the_text(self, kind: str, text: str) -> None:
        """A normalizer changes it, or a part is a special or an added token."""
        other = changing_tokenizer()
        language = {
            "regex": lambda: regex(re.escape(text), other),
            "lark": lambda: lark(f'start: "{text}"', other),
            "enum": lambda: json_schema({"enum": [text]}, other, whitespace=False),
            "name": lambda: json_schema(
                {"type": "object", "properties": {text: {"const": 1}}, "required": [text]}
                | {"additionalProperties": False},
                other,
                whitespace=False,
            ),
        }[kind]()
        expected = {"enum": json.dumps(text, ensure_ascii=False), "name": f'{{"{text}":1}}'}.get(kind, text)

        assert expected == self.text(language, other)
        assert expected == self.text(pickle.loads(pickle.dumps(language)), other)


def after_ids(language: Language, ids: list[int]) -> Any:
    """A matcher after *ids*, in one step."""
    matcher = language.matcher()
    assert matcher.advance(ids) == len(ids)
    return matcher


def changing_tokenizer() -> PreTrainedTokenizerFast:
    """The test tokenizer with NFC, a further special token and an added one."""
    backend = Tokenizer.from_str(tokenizer().backend_tokenizer.to_str())
    backend.normalizer = normalizers.NFC()
    changed = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", additional_special_tokens=["<also>"]
    )
    changed.add_tokens(["né"])
    return changed


class TestTables:
    def test_are_made_once_for_a_tokenizer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Making them takes up to a second with a large vocabulary."""
        import llguidance.hf

        made, real = [], llguidance.hf.from_tokenizer
        monkeypatch.setattr(
            llguidance.hf, "from_tokenizer", lambda *args, **named: made.append(1) or real(*args, **named)
        )
        fresh = pickle.loads(pickle.dumps(tokenizer()))

        for pattern in ("a", "b"):
            Grammar(regex(pattern, fresh))(torch.zeros(2, 1, 500), after([1]).rows(torch.tensor([0, 0])))

        assert [1] == made

    def test_stay_at_home(self) -> None:
        """A language may be sent to another process, which makes its own."""
        language = regex("ab?", tokenizer())

        sent = pickle.loads(pickle.dumps(Grammar(language)))

        assert repr(Grammar(language)) == repr(sent)
        assert pieces(language, "a") == pieces(sent.language, "a")

    def test_repr_says_what_the_caller_wrote(self) -> None:
        """It names the stage that left no token."""
        expected = "Grammar(language=LLGuidance(kind='regex', source='ab?', eos=(0,)))"

        assert expected == repr(Grammar(regex("ab?", tokenizer())))
