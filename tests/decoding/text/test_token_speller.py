"""The bytes of single tokens."""

import copy
import pathlib
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from decodekit.decoding.text.token_bytes import spelled_bytes, token_speller

from ...speculation.drafters.tokenizers_for_drafts import TEXT, tokenizer

PAIR = pathlib.Path(__file__).parents[3] / "examples" / "pair" / "target"
BYTES: Any = AutoTokenizer.from_pretrained(PAIR)


@given(st.text(max_size=20))
def test_the_bytes_of_a_text_add_up(text: str) -> None:
    """Also where a character is of several tokens."""
    ids = BYTES(text, add_special_tokens=False)["input_ids"]

    assert text.encode() == b"".join(token_speller(BYTES)(token) for token in ids)


@pytest.mark.parametrize(("token", "expected"), [(0, b"<|endoftext|>"), (10**6, b"")])
def test_a_special_token_and_one_that_is_none(token: int, expected: bytes) -> None:
    """The first is spelled out, and the second has no bytes."""
    assert expected == token_speller(BYTES)(token)


@pytest.mark.parametrize("text", [TEXT, "한 Я"])
def test_sentence_pieces(text: str) -> None:
    """With their spaces, and single bytes of characters that have no token."""
    known = tokenizer("pieces")
    spell = token_speller(known)

    spelled = b"".join(spell(token) for token in known(text, add_special_tokens=False)["input_ids"])
    assert text.encode() == spelled.removeprefix(b" ")


@pytest.mark.parametrize(
    "bytes_of", [lambda known: token_speller(known), lambda known: spelled_bytes(known).get]
)
def test_an_added_token_of_spaces(bytes_of: Any) -> None:
    """Gemma's vocabulary has runs of spaces among the added tokens, spelled as other tokens are."""
    known = copy.deepcopy(tokenizer("pieces"))
    known.add_tokens([AddedToken("▁▁", normalized=False)])

    assert b"  " == bytes_of(known)(known.convert_tokens_to_ids("▁▁"))


def test_another_kind_of_vocabulary() -> None:
    """The bytes of what a token decodes to alone."""
    backend = Tokenizer(models.WordLevel({"<s>": 0, "語": 1, "a": 2}, unk_token="<s>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")

    assert [b"<s>", "語".encode(), b"a"] == [token_speller(words)(token) for token in range(3)]
