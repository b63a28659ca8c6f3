"""Cleaning a text piece by piece."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from decodekit.decoding.text.clean_up import CleanUp, cleans_up

# Everything that the rules speak of, and a letter.
PIECES = st.lists(st.text(" .?!,'ntmsverx", max_size=4), max_size=10)


def tokenizer(model: Any, **options: bool) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), **options)


def word_level(clean_up: bool = True) -> PreTrainedTokenizerFast:
    return tokenizer(models.WordLevel({"a": 0}, unk_token="a"), clean_up_tokenization_spaces=clean_up)


@given(PIECES)
def test_pieces_add_up_to_the_cleaned_text(pieces: list[str]) -> None:
    """As transformers cleans the whole, and what is out begins it."""
    clean_up, shown = CleanUp(), ""
    expected = word_level().clean_up_tokenization("".join(pieces))
    for piece in pieces:
        shown += clean_up.push(piece)

        assert expected.startswith(shown)
    assert expected == shown + clean_up.flush()
    assert clean_up.flush() == ""


@given(PIECES, st.text(" .'nt", max_size=3))
def test_a_look_ahead_changes_nothing(pieces: list[str], more: str) -> None:
    """And it shows what would come."""
    clean_up, other = CleanUp(), CleanUp()
    for piece in pieces:
        expected = other.push(piece)
        clean_up.peek(more)

        assert expected == clean_up.push(piece)
    assert clean_up.peek(more) == other.push(more) + other.flush()


def test_only_a_live_beginning_is_held() -> None:
    """Worked by hand."""
    clean_up = CleanUp()

    assert [clean_up.push(piece) for piece in ("a ", ".", " b", " n", "'", "o", " ' ", "c")] == [
        "a", ".", " b", "", "", " n'o", "", "'c",
    ]  # fmt: skip


@pytest.mark.parametrize("insists", [False, True])
def test_only_the_tokenizer_itself_decides(insists: bool) -> None:
    """As the tokenizer's settings say, of which BPE has a second one."""
    name = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    vocabulary = {"a": 0, " ": 1, ".": 2}
    bpe = tokenizer(models.BPE(vocabulary, []), clean_up_tokenization_spaces=True, **{name: insists})
    word, plain = word_level(), word_level(clean_up=False)

    assert (bpe.decode([0, 2]) == "a.") is cleans_up(bpe)
    assert cleans_up(word)
    assert not cleans_up(plain)
    assert not cleans_up(object())
