"""What may be passed as prompts."""

import copy
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BatchEncoding, PreTrainedTokenizerFast

from decodekit.decoding import DecoderShape, Generator, MaxNewTokens
from decodekit.decoding.prompts import as_rows
from decodekit.testing import ScriptedDecoder

SHAPE = DecoderShape(batch_size=3, max_length=8, vocab_size=10, widths=(1, 4), scored_width=4)


def letters(text: str) -> dict[str, list[int]]:
    """A tokenizer: a to j."""
    return {"input_ids": [ord(letter) - ord("a") for letter in text]}


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([1, 2], [[1, 2]]),
        ((1, 2), [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (np.array([[1, 2], [3, 4]], dtype=np.int32), [[1, 2], [3, 4]]),
        (torch.tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (torch.tensor([1, 2], dtype=torch.uint8), [[1, 2]]),
        ([torch.tensor([1, 2]), np.array([3])], [[1, 2], [3]]),
        ([np.int64(1), 2], [[1, 2]]),
        ("ab", [[0, 1]]),
        (["ab", "c"], [[0, 1], [2]]),
    ],
)
def test_accepts(prompts: Any, expected: list[list[int]]) -> None:
    """Ids in lists, tuples and integer arrays, and strings where there is a tokenizer."""
    assert expected == as_rows(prompts, SHAPE, letters)


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        ([], ValueError, "'prompts' must be 1 to 3, the decoder's rows: got 0"),
        ([[1]] * 4, ValueError, "'prompts' must be 1 to 3, the decoder's rows: got 4"),
        ([[1], []], ValueError, "prompt 1 must have 1 to 8 tokens, the decoder's max_length: got 0"),
        ([[1] * 9], ValueError, "prompt 0 must have 1 to 8 tokens, the decoder's max_length: got 9"),
        ([1, 10], ValueError, "the ids of prompt 0 must be 0 to 9, the vocabulary: got 10"),
        ([[1], [-1]], ValueError, "the ids of prompt 1 must be 0 to 9, the vocabulary: got -1"),
        (torch.ones(1, 2), TypeError, "'prompts' must be an integer array: got float32"),
        (torch.ones(1, 2).bool(), TypeError, "'prompts' must be an integer array: got bool"),
        (
            np.ones((1, 1, 1), dtype=int),
            ValueError,
            r"the shape \[batch, length\] or \[length\]: got \[1, 1, 1\]",
        ),
        ([1.5], TypeError, "a prompt must be a list of ids, a text or a chat: got 1.5"),
        ([True], TypeError, "a prompt must be a list of ids, a text or a chat: got True"),
        ([[1, None]], TypeError, r"a prompt must be a list of ids, a text or a chat: got \[1, None\]"),
        (
            7,
            TypeError,
            "'prompts' must be a text, a chat, ids, a list of these, .* returns: got int",
        ),
        (
            None,
            TypeError,
            "'prompts' must be a text, a chat, ids, a list of these, .* returns: got None",
        ),
    ],
)
def test_refuses(prompts: Any, error: type[Exception], message: str) -> None:
    """What, the rule, and the value."""
    with pytest.raises(error, match=message):
        as_rows(prompts, SHAPE, letters)


def test_strings_need_a_tokenizer() -> None:
    """Without one, a string is refused and quoted."""
    with pytest.raises(TypeError, match=r"there is no tokenizer .*: got the string 'def'"):
        as_rows("def", SHAPE)


class TestEncoded:
    @pytest.mark.parametrize("kind", [dict, BatchEncoding])
    @pytest.mark.parametrize("array", [lambda rows: rows, np.array, torch.tensor])
    def test_padding_is_left_out_on_either_side(
        self, kind: Callable[..., Any], array: Callable[..., Any]
    ) -> None:
        """As a tokenizer returns rows of one length."""
        ids, mask = [[0, 0, 1, 2], [3, 4, 5, 0], [6, 7, 8, 9]], [[0, 0, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]]
        encoded = kind({"input_ids": array(ids), "attention_mask": array(mask), "token_type_ids": None})

        assert [[1, 2], [3, 4, 5], [6, 7, 8, 9]] == as_rows(encoded, SHAPE)

    def test_one_text_and_lists_of_them(self) -> None:
        """Without a batch dimension, without a mask, and one encoding a prompt."""
        one = BatchEncoding({"input_ids": [1, 2], "attention_mask": [1, 1]})

        assert [[1, 2]] == as_rows(one, SHAPE)
        assert [[1, 2], [3]] == as_rows([one, {"input_ids": [3]}], SHAPE)

    @pytest.mark.parametrize(
        ("prompts", "error", "message"),
        [
            ({"ids": [1]}, TypeError, r"must have 'input_ids': got the keys \['ids'\]"),
            ({"role": "user", "content": "a"}, TypeError, r"\(a chat is a list of messages\)"),
            (
                {"input_ids": [[1, 2]], "attention_mask": [[1]]},
                ValueError,
                "must have the shape of 'input_ids'",
            ),
            (
                {"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]},
                ValueError,
                "zeros for padding before or after",
            ),
            (
                {"input_ids": [1, 2], "attention_mask": [2, 1]},
                ValueError,
                "a row of 'attention_mask' must be ones",
            ),
            ({"input_ids": [1, 2], "attention_mask": [0, 0]}, ValueError, "must have 1 to .* tokens"),
            ([{"input_ids": [[1], [2]]}], ValueError, "must be one row of 'input_ids': got 2"),
        ],
    )
    def test_refuses(self, prompts: Any, error: type[Exception], message: str) -> None:
        """What is no encoding, or has holes."""
        with pytest.raises(error, match=message):
            as_rows(prompts, SHAPE)


TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n"
    "{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One of bytes, with a template and a token that begins each text."""
    backend = Tokenizer(models.WordLevel({"<s>": 0, **{chr(i): i for i in range(9, 127)}}, unk_token="<s>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", chat_template=TEMPLATE)


class TestChats:
    USER: ClassVar[list[dict[str, str]]] = [{"role": "user", "content": "abc"}]

    @staticmethod
    def text(rows: list[list[int]]) -> list[str]:
        """The texts that were encoded."""
        return ["".join(map(chr, row)) for row in rows]

    def test_are_written_by_the_template(self, tokenizer: Any) -> None:
        """Up to the assistant's turn; as transformers encodes them."""
        shape = attrs.evolve(SHAPE, vocab_size=128, max_length=64)
        rows = as_rows(self.USER, shape, tokenizer)
        theirs = tokenizer.apply_chat_template(self.USER, add_generation_prompt=True, return_dict=True)

        assert ["user: abc\nassistant: "] == self.text(rows)
        assert [theirs["input_ids"]] == rows

    def test_other_options_are_the_template_s(self, tokenizer: Any) -> None:
        """The message says how; what it says is taken."""
        generator = Generator(
            ScriptedDecoder(torch.eye(128), max_length=64), tokenizer=tokenizer, stop=MaxNewTokens(1)
        )
        with pytest.raises(
            TypeError, match=r"got 'tools'; a Generator takes prompts=tokenizer\.apply_chat_t"
        ):
            generator(self.USER, tools=[])
        encoded = tokenizer.apply_chat_template(
            self.USER, tools=[], add_generation_prompt=True, return_dict=True
        )

        assert generator(self.USER).ids == generator(encoded).ids

    def test_a_text_with_two_beginnings_is_said(self, tokenizer: Any) -> None:
        """As that of a chat template is where the tokenizer puts its first token before all texts."""
        shape, own = attrs.evolve(SHAPE, vocab_size=128, max_length=64), tokenizer.bos_token_id
        plain, tokenizer = tokenizer, copy.deepcopy(tokenizer)
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", own)]
        )
        with pytest.warns(UserWarning, match="begins with the tokenizer's own first token .*got '<s>a'"):
            assert [own, own] == as_rows("<s>a", shape, tokenizer)[0][:2]
        with warnings.catch_warnings():
            warnings.simplefilter("error")

            assert [own] == as_rows("a", shape, tokenizer)[0][:1]
            assert [own, own] == as_rows("<s><s>a", shape, plain)[0][:2]

    def test_several_beside_strings(self, tokenizer: Any) -> None:
        """One row each; an assistant's last message is continued."""
        shape = attrs.evolve(SHAPE, vocab_size=128, max_length=64)
        begun = [*self.USER, {"role": "assistant", "content": "de"}]

        assert ["user: abc\nassistant: ", "user: abc\nassistant: de", "f"] == self.text(
            as_rows([self.USER, begun, "f"], shape, tokenizer)
        )

    def test_refuses(self, tokenizer: Any) -> None:
        """No tokenizer, no template, or one that refuses."""
        with pytest.raises(TypeError, match="a chat is encoded by a tokenizer"):
            as_rows(self.USER, SHAPE)
        with pytest.raises(ValueError, match="must have a tokenizer with a chat template"):
            as_rows(self.USER, SHAPE, letters)
        with pytest.raises(ValueError, match="chat template refuses the messages: no tools"):
            as_rows([{"role": "tool", "content": ""}], SHAPE, tokenizer)
        with pytest.raises(
            ValueError, match=r"refuses the messages: .*without 'content': \{'role': 'tool'\}"
        ):
            as_rows([{"role": "tool"}], SHAPE, tokenizer)
        parts = [{"role": "user", "content": [{"type": "text", "text": "abc"}]}]
        tokenizer.chat_template = "{{ messages[0]['role'] + messages[0]['content'] }}"
        with pytest.raises(ValueError, match=r"refuses the messages: .*whose 'content' is no text: \{'role'"):
            as_rows(parts, SHAPE, tokenizer)

    def test_half_of_a_character_is_refused(self, tokenizer: Any) -> None:
        """In a text and in a message; tokenizers have no message of their own."""
        for prompt in ("\ud800abc", [{"role": "user", "content": "\ud800"}]):
            with pytest.raises(ValueError, match=r"a text must be writable in UTF-8: got .*\\ud800"):
                as_rows(prompt, attrs.evolve(SHAPE, vocab_size=128, max_length=64), tokenizer)

    def test_a_prompt_without_tokens_among_others(self) -> None:
        """None and an empty list both begin with the start token."""
        assert [[3], [1], [3]] == as_rows([None, [1], []], SHAPE, start=3)


def test_too_many_prompts_name_the_option() -> None:
    """That makes room for them."""
    with pytest.raises(ValueError, match=r"got 9\. Compile it with batch_size=9"):
        as_rows([[1]] * 9, SHAPE)
