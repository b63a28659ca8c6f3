"""Infilling prompts."""

from typing import Any

import pytest
import torch
from tokenizers import AddedToken

from decodekit.decoding import (
    EndOfSequence,
    Generator,
    InfillingTemplate,
    MaxNewTokens,
    infilling_prompt,
)
from decodekit.decoding.strategies.infilling import TEMPLATES
from decodekit.decoding.text.piece_index import PieceIndex
from decodekit.testing import ScriptedDecoder

from ...speculation.drafters.tokenizers_for_drafts import byte_level, sentence_piece, wrapped

BEFORE, AFTER = "def f(x):\n    ", "\n    return [i ** 2]"


def with_tokens(names: tuple[str, ...], kind: str = "bytes", bos: str | None = None) -> Any:
    """A tokenizer with these special tokens."""
    made = wrapped(byte_level(420) if kind == "bytes" else sentence_piece(400), bos, "<|end|>")
    made.add_special_tokens({"additional_special_tokens": list(names)})
    return made


def parts(known: Any, ids: list[int]) -> list[tuple[str, str]]:
    """Each special token, and the text that its following tokens spell."""
    found: list[tuple[str, list[int]]] = []
    for index in ids:
        if index in known.all_special_ids:
            found.append((known.convert_ids_to_tokens(index), []))
        else:
            found[-1][1].append(index)
    index = PieceIndex.of(known)
    return [(name, index.text_of(tokens).decode()) for name, tokens in found]


class TestInfillingPrompt:
    @pytest.mark.parametrize("bos", [None, "<s>"])
    @pytest.mark.parametrize("kind", ["bytes", "pieces"])
    @pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.prefix)
    def test_is_the_models_own(self, template: InfillingTemplate, kind: str, bos: str | None) -> None:
        """Prefix, suffix and middle; or suffix and prefix, where there is no token for the middle."""
        known = with_tokens((*template.tokens, *template.ends), kind, bos)

        prompt = infilling_prompt(known, BEFORE, AFTER)

        space = " " if kind == "pieces" else ""
        before, after = (template.prefix, space + BEFORE), (template.suffix, AFTER)
        middle = [(template.middle, "")] if template.middle else []
        expected = [before, after, *middle] if middle else [after, before]
        assert [*([(bos, "")] if bos else []), *expected] == parts(known, prompt.ids)
        assert template == prompt.template

    def test_ends_are_the_templates_and_the_end_of_sequence(self) -> None:
        """Those that the tokenizer has."""
        template = TEMPLATES[2]
        known = with_tokens((*template.tokens, "<|file_sep|>"))

        ends = known.convert_ids_to_tokens(list(infilling_prompt(known, BEFORE, AFTER).ends))

        assert {"<|end|>", "<|file_sep|>", *template.tokens} == set(ends)

    @pytest.mark.parametrize("kind", ["bytes", "pieces"])
    def test_special_tokens_in_a_text_are_text(self, kind: str) -> None:
        """A program about such tokens infills too."""
        known = with_tokens(TEMPLATES[0].tokens, kind)

        prompt = infilling_prompt(known, "x = '<fim_suffix>", "<|end|>'")

        special = set(known.all_special_ids)
        assert 3 == sum(index in special for index in prompt.ids)

    @pytest.mark.parametrize("kind", ["bytes", "pieces"])
    def test_tokens_of_the_template_need_not_be_special(self, kind: str) -> None:
        """As in Qwen2.5-Coder and CodeGemma; their names in a text are text too."""
        template = TEMPLATES[2]
        known = wrapped(byte_level(420) if kind == "bytes" else sentence_piece(400), None, "<|end|>")
        known.add_tokens([AddedToken(name, normalized=False, special=False) for name in template.tokens])
        before, after = "x = '<|fim_suffix|>", "<|fim_middle|>' <|fim_middle|>"

        ids = infilling_prompt(known, before, after).ids

        marks = known.convert_tokens_to_ids(list(template.tokens))
        first, second, last = (ids.index(mark) for mark in marks)
        index = PieceIndex.of(known)
        space = " " if kind == "pieces" else ""
        assert [0, len(ids) - 1, 3] == [first, last, sum(token in marks for token in ids)]
        assert space + before == index.text_of(ids[1:second]).decode()
        assert after == index.text_of(ids[second + 1 : -1]).decode()

    def test_other_names_are_tokenized_as_they_were(self) -> None:
        """Of the template's ends, those that the tokenizer does not have."""
        known, text = with_tokens(TEMPLATES[0].tokens), "usage: prog <filename> <file_sep>"

        ids = infilling_prompt(known, text, "").ids

        assert known(text)["input_ids"] == ids[1:-2]

    def test_ends_are_a_base_models_too(self) -> None:
        """The end of sequence of an instruct model's tokenizer is that of a turn."""
        known = with_tokens((*TEMPLATES[2].tokens, "<|endoftext|>"))

        assert known.convert_tokens_to_ids("<|endoftext|>") in infilling_prompt(known, "a", "b").ends

    def test_does_not_spell_the_vocabulary(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Once for a tokenizer at most: an editor asks at each key."""
        known = with_tokens(TEMPLATES[0].tokens)
        infilling_prompt(known, "a", "b")
        calls, own = [], known.get_vocab
        monkeypatch.setattr(known, "get_vocab", lambda: calls.append(1) or own())

        infilling_prompt(known, "a", "b")

        assert 1 == len(calls)

    def test_the_suffix_has_no_space_of_its_own(self) -> None:
        """SentencePiece puts one before a text, and a suffix begins none."""
        known = with_tokens(TEMPLATES[3].tokens, "pieces", "<s>")

        ids = infilling_prompt(known, "wood", "chuck").ids
        after = ids[ids.index(known.convert_tokens_to_ids("▁<SUF>")) + 1 : -1]

        assert "chuck" == "".join(known.convert_ids_to_tokens(after))

    def test_empty_parts(self) -> None:
        """The tokens of the template stay."""
        known = with_tokens(TEMPLATES[0].tokens)

        assert list(TEMPLATES[0].tokens) == known.convert_ids_to_tokens(infilling_prompt(known, "", "").ids)

    def test_a_template_of_ones_own(self) -> None:
        """In place of those of published models."""
        known = with_tokens(("<before>", "<after>"))
        template = InfillingTemplate("<before>", "<after>")

        prompt = infilling_prompt(known, "a", "b", template)

        assert ["<after>", "b", "<before>", "a"] == known.convert_ids_to_tokens(prompt.ids)

    def test_a_tokenizer_without_is_refused(self) -> None:
        """With all the tokens that were looked for."""
        known = with_tokens(("<fim_prefix>",))

        with pytest.raises(ValueError, match=r"one of these groups: <fim_prefix> <fim_suffix> .*PREFIX"):
            infilling_prompt(known, "a", "b")
        with pytest.raises(ValueError, match="one of these groups: <p> <s>: got TokenizersBackend"):
            infilling_prompt(known, "a", "b", InfillingTemplate("<p>", "<s>"))

    def test_other_values_are_refused(self) -> None:
        """Texts that are none, and names that are none."""
        known, anything = with_tokens(TEMPLATES[0].tokens), 3
        wrong: Any = anything

        with pytest.raises(TypeError, match="'suffix' must be a string: got 3"):
            infilling_prompt(known, "a", wrong)
        with pytest.raises(TypeError, match="'prefix' must be the name of a token: got ''"):
            InfillingTemplate("", "<s>")
        with pytest.raises(TypeError, match="'ends' must be names of tokens: got 3"):
            InfillingTemplate("<p>", "<s>", ends=wrong)

    def test_a_generator_ends_where_the_middle_does(self) -> None:
        """At a token of the template, which is not shown."""
        known = with_tokens(TEMPLATES[0].tokens)
        known.add_tokens([AddedToken("<file_sep>", normalized=False, special=False)])
        prompt = infilling_prompt(known, BEFORE, AFTER)
        middle = known("x = 1")["input_ids"]
        ids = [*prompt.ids, *middle, known.convert_tokens_to_ids("<file_sep>")]
        decoder = ScriptedDecoder(torch.eye(len(known)), line=lambda tokens: ids[len(tokens)], max_length=96)

        stop = EndOfSequence(prompt.ends, hide=True) | MaxNewTokens(64)
        result = Generator(decoder, stop=stop, tokenizer=known)(prompt.ids)

        assert ["x = 1"] == result.text
        assert ["end_of_sequence"] == result.finish_reasons
