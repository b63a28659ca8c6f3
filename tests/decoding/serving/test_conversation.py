"""Conversations as ids: what a turn adds, and what is encoded again."""

from typing import Any

import attrs
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from decodekit.decoding.serving.conversation import Segment, Turn, ids_of, next_turn

from .chat_tokenizer import ENDLESS, FORGETFUL, PLAIN, TRIMMING, chat_tokenizer


def said(text: str) -> list[dict[str, str]]:
    """A user's message."""
    return [{"role": "user", "content": text}]


def answered(turn: Turn, tokenizer: Any, text: str, *, pieces: list[str] | None = None) -> Turn:
    """*turn* with an answer that ends, made of these tokens."""
    ids = tokenizer.convert_tokens_to_ids(list(text) if pieces is None else pieces)
    end = Segment("<|end|>", (tokenizer.eos_token_id,), hidden=True)
    answer = (Segment(text, tuple(ids)), end)
    return attrs.evolve(turn, answer=answer, text=text)


def spelled(tokenizer: Any, ids: list[int]) -> list[str]:
    """Their tokens."""
    tokens: list[str] = tokenizer.convert_ids_to_tokens(ids)
    return tokens


def test_the_first_turn_is_the_whole_template() -> None:
    """Encoded as a chat."""
    tokenizer = chat_tokenizer()
    first = next_turn([], [{"role": "system", "content": "a"}], said("abcd"), tokenizer)

    expected = ["<|system|>", "a", "<|end|>", "\n", "<|user|>", "abcd", "<|end|>", "\n", "<|assistant|>"]
    assert expected == spelled(tokenizer, first.prompt)
    assert 0 == first.rewritten


def test_generated_ids_are_not_encoded_again() -> None:
    """Not even where the template's text has another encoding; what is added is encoded alone."""
    tokenizer = chat_tokenizer()
    first = answered(next_turn([], [], said("a"), tokenizer), tokenizer, "abcd")
    second = next_turn([first], [], said("ab"), tokenizer)

    new = ["\n", "<|user|>", "ab", "<|end|>", "\n", "<|assistant|>"]
    assert [*"abcd", "<|end|>", *new] == spelled(tokenizer, second.prompt)[len(first.prompt) :]
    assert 0 == second.rewritten


def test_a_template_without_ends() -> None:
    """The hidden end is left out, at no cost."""
    tokenizer = chat_tokenizer(ENDLESS)
    first = answered(next_turn([], [], said("a"), tokenizer), tokenizer, "ba")
    second = next_turn([first], [], said("ab"), tokenizer)

    assert ["<|user|>", "a", "<|assistant|>", "b", "a", "<|user|>", "ab", "<|assistant|>"] == spelled(
        tokenizer, second.prompt
    )
    assert 0 == second.rewritten


def test_a_template_that_trims() -> None:
    """From the white space on the answer is encoded again."""
    tokenizer = chat_tokenizer(TRIMMING)
    first = answered(next_turn([], [], said("a"), tokenizer), tokenizer, "ba \n")
    second = next_turn([first], [], said("ab"), tokenizer)

    prompt = spelled(tokenizer, second.prompt)
    assert ["b", "a", "<|end|>", "\n", "<|user|>"] == prompt[len(first.prompt) :][:5]
    assert 2 == second.rewritten


def test_a_template_that_leaves_reasoning_out() -> None:
    """From there on all is encoded again; a later turn counts what changes then, not what had changed."""
    tokenizer = chat_tokenizer(FORGETFUL)
    first = answered(
        next_turn([], [], said("a"), tokenizer), tokenizer, "bbhab", pieces=["b", "b", "h", "ab"]
    )
    second = answered(next_turn([first], [], said("ab"), tokenizer), tokenizer, "ccha")
    third = answered(next_turn([first, second], [], said("e"), tokenizer), tokenizer, "d")
    fourth = next_turn([first, second, third], [], said("e"), tokenizer)

    # The answers' tokens: of the first all four differ, of the second all four, of the third none.
    assert [0, 4, 4, 0] == [turn.rewritten for turn in (first, second, third, fourth)]
    assert (
        first.prompt + tokenizer.convert_tokens_to_ids(["ab", "<|end|>"])
        == second.prompt[: len(first.prompt) + 2]
    )
    # What the second turn has encoded again stays.
    assert second.segments == third.segments[: len(second.segments)]


@pytest.mark.parametrize("right_strip", [False, True])
def test_what_follows_an_end_is_encoded_as_in_the_whole_template(right_strip: bool) -> None:
    """Also where the tokenizer drops white space after a special token."""
    tokenizer = chat_tokenizer(PLAIN, right_strip=right_strip)
    first = answered(next_turn([], [], said("a"), tokenizer), tokenizer, "b")
    second = next_turn([first], [], said("ab"), tokenizer)
    messages = [*said("a"), {"role": "assistant", "content": "b"}, *said("ab")]
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    assert whole == second.prompt
    assert right_strip == ("\n" not in spelled(tokenizer, second.prompt))


def test_a_tokenizer_that_marks_the_beginning_of_a_text() -> None:
    """What a turn adds after an end is not taken for the beginning."""
    vocab = ["<|end|>", "▁", "a", "b", "[", "]", "▁["]
    inner = Tokenizer(models.BPE({token: i for i, token in enumerate(vocab)}, [("▁", "[")]))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = decoders.Metaspace(prepend_scheme="first")
    inner.add_special_tokens(["<|end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% else %}{{ m.content }}<|end|>"
        "{% endif %}{% endfor %}"
    )
    first = answered(next_turn([], [], said("a"), tokenizer), tokenizer, "b")
    second = next_turn([first], [], said("a"), tokenizer)

    assert ["▁[", "a", "]", "b", "<|end|>", "[", "a", "]"] == spelled(tokenizer, second.prompt)
    assert ids_of(second.segments) == second.prompt
