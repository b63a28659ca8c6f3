"""Stop strings that are special tokens, which the text leaves out."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from decodekit.decoding import Generator, MaxNewTokens, StopStrings
from decodekit.processors import from_generation_config
from decodekit.testing import ScriptedDecoder, last_token

WORDS = ("a", "b", "c", "<|im_end|>", "d", "e")
COUNT_UP = torch.eye(6).roll(1, dims=1)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Letters, and a special token in their middle."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, additional_special_tokens=["<|im_end|>"])


def generated(tokenizer: Any, stop: Any) -> Any:
    """From a: b, c, the special token, d, e."""
    decoder = ScriptedDecoder(COUNT_UP, line=last_token)
    return Generator(decoder, stop=stop | MaxNewTokens(5), tokenizer=tokenizer)([0])


@pytest.mark.parametrize("hide", [True, False])
def test_a_special_token_ends_a_row(tokenizer: Any, hide: bool) -> None:
    """The text leaves it out all the same."""
    result = generated(tokenizer, StopStrings("<|im_end|>", tokenizer, hide=hide))

    assert [[1, 2, 3]] == result.ids
    assert ["b c"] == result.text
    assert "<|im_end|>" == result.finishes[0].matched


def test_beside_others_the_first_wins(tokenizer: Any) -> None:
    """Each is told by its own finish, whatever their order; of two with one end the longer."""
    for strings, matched, ids in [
        (["d", "<|im_end|>"], "<|im_end|>", [1, 2, 3]),
        (["<|im_end|>", "c"], "c", [1, 2]),
        (["e", "<|im_end|> d"], "<|im_end|> d", [1, 2, 3, 4]),
        (["d", "<|im_end|> d"], "<|im_end|> d", [1, 2, 3, 4]),
        (["<|im_end|> d", "d"], "<|im_end|> d", [1, 2, 3, 4]),
    ]:
        result = generated(tokenizer, StopStrings(strings, tokenizer))

        assert [ids] == result.ids
        assert matched == result.finishes[0].matched


def test_across_the_special_token_plain_text_is_searched_without_it(tokenizer: Any) -> None:
    """In the text that is shown, c and d are neighbours."""
    assert [[1, 2, 3, 4]] == generated(tokenizer, StopStrings("c d", tokenizer)).ids


def test_of_a_generation_config(tokenizer: Any) -> None:
    """As ``generate`` does."""
    config = GenerationConfig(stop_strings=["<|im_end|>"], max_new_tokens=5)
    decoder = ScriptedDecoder(COUNT_UP, line=last_token)
    parts = from_generation_config(config, tokenizer=tokenizer).as_arguments()

    assert [[1, 2, 3]] == Generator(decoder, **parts)([0]).ids
