"""A text without a prompt begins with the start token."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from decodekit.decoding import Batcher, BeamSearch, Generator, MaxNewTokens
from decodekit.testing import ScriptedDecoder, last_token

COUNT_UP = torch.eye(8).roll(1, dims=1)


def letters() -> Any:
    """A tokenizer of the letters a to h, of which d begins a text."""
    backend = Tokenizer(models.WordLevel({c: i for i, c in enumerate("abcdefgh")}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="d")


def counting(**parts: Any) -> Generator:
    """Counts up modulo 8."""
    return Generator(
        ScriptedDecoder(COUNT_UP, batch_size=3, max_length=16, line=last_token), stop=MaxNewTokens(3), **parts
    )


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        (None, [[5, 6, 7, 0]]),
        ([[]], [[5, 6, 7, 0]]),
        ([[1], []], [[1, 2, 3, 4], [5, 6, 7, 0]]),
        (torch.empty(2, 0, dtype=torch.int64), [[5, 6, 7, 0]] * 2),
        (
            {"input_ids": [[1, 2], [0, 0]], "attention_mask": [[1, 1], [0, 0]]},
            [[1, 2, 3, 4, 5], [5, 6, 7, 0]],
        ),
    ],
    ids=["none", "empty", "one-of-two", "array", "only-padding"],
)
def test_stands_for_an_empty_prompt(prompts: Any, expected: list[list[int]]) -> None:
    """None, and each prompt without tokens."""
    assert expected == counting(start_of_sequence=5)(prompts).sequences


def test_is_the_tokenizers() -> None:
    """Unless another is given, or none."""
    assert [[3, 4, 5, 6]] * 2 == counting(tokenizer=letters())(["", ""]).sequences
    assert [[5, 6, 7, 0]] == counting(tokenizer=letters(), start_of_sequence=5)("").sequences
    with pytest.raises(ValueError, match="prompt 0 must have 1 to 16 tokens"):
        counting(tokenizer=letters(), start_of_sequence=None)("")


def test_everywhere() -> None:
    """Streams, logits, log-probabilities and requests take it."""
    generator = counting(start_of_sequence=5)

    assert [6, 7, 0] == [event.ids[0] for event in generator.stream(None)]
    assert 6 == generator.logits(None)[0].argmax()
    assert [[None]] == generator.prompt_logprobs(None)
    with Batcher(generator.decoder) as batcher:
        assert [[5, 6, 7, 0]] == batcher.submit(generator.parts, None).result().sequences


def test_without_one_prompts_have_tokens() -> None:
    """As before, by what and where."""
    with pytest.raises(ValueError, match="prompt 1 must have 1 to 16 tokens"):
        counting()([[1], []])
    with pytest.raises(TypeError, match="'prompts' must be a text, a chat, ids"):
        counting()(None)
    with pytest.raises(ValueError, match="'prompts' must be 1 or more"):
        counting(start_of_sequence=5)([])


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("bos", ValueError, "'start_of_sequence' must be 'auto', None or an id: got 'bos'"),
        (-1, ValueError, "'start_of_sequence' must be 'auto', None or an id >= 0: got -1"),
        ([1], TypeError, r"'start_of_sequence' must be 'auto', None or an id: got \[1\]"),
    ],
)
def test_refused(value: Any, error: type[Exception], message: str) -> None:
    """By the rule; an id outside the vocabulary when it is used."""
    with pytest.raises(error, match=message):
        counting(start_of_sequence=value)
    with pytest.raises(ValueError, match="the vocabulary: got 8"):
        counting(start_of_sequence=8)(None)


def test_of_beams() -> None:
    """In calls and in streams."""
    search = BeamSearch(counting().decoder, beams=3, stop=MaxNewTokens(3), start_of_sequence=5)

    assert search(None).sequences[0] == [5, 6, 7, 0] == search([[5]]).sequences[0]
    assert [6, 7, 0] == list(next(iter(search.stream([[]]))).ids)
    with pytest.raises(ValueError, match="'prompts' must be"):
        BeamSearch(counting().decoder, beams=3)([])
