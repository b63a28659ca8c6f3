"""An answer's ids, divided where its text ends."""

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from decodekit.decoding import Finish, Generator, StopStrings
from decodekit.decoding.results.statistics import Statistics
from decodekit.decoding.serving.conversation import Segment, Turn
from decodekit.decoding.serving.finished_answer import with_answer
from decodekit.testing import ScriptedDecoder

from .chat_tokenizer import chat_tokenizer
from .test_session import TABLE

TOKENIZER = chat_tokenizer()


def segment(text: str, tokens: Sequence[str], hidden: bool = False) -> Segment:
    """Of these tokens."""
    return Segment(text, tuple(TOKENIZER.convert_tokens_to_ids(list(tokens))), hidden)


@pytest.mark.parametrize(
    ("tokens", "finish", "text", "expected"),
    [
        pytest.param(
            ["ab", "c", "<|end|>"],
            Finish("end_of_sequence", 0),
            "abc",
            [segment("abc", ["ab", "c"]), segment("<|end|>", ["<|end|>"], True)],
            id="end of sequence",
        ),
        pytest.param(["ab", "c"], Finish("max_new_tokens"), "abc", [segment("abc", ["ab", "c"])], id="limit"),
        pytest.param(["ab", "c"], None, "abc", [segment("abc", ["ab", "c"])], id="broken off"),
        pytest.param(
            ["a", "<|user|>", "b"], None, "ab", [segment("ab", ["a", "<|user|>", "b"])], id="special inside"
        ),
        pytest.param(
            ["a", "e", "f"],
            Finish("stop_string", "ef", hide=True),
            "a",
            [segment("a", ["a"]), segment("ef", ["e", "f"], True)],
            id="stop string",
        ),
        pytest.param(
            ["a", "b", "cd", "h"],
            Finish("stop_string", "dh", hide=True),
            "abc",
            [segment("ab", ["a", "b"]), segment("cdh", ["cd", "h"], True)],
            id="stop string inside a token",
        ),
        pytest.param(
            ["a", "e", "f"], Finish("stop_string", "ef"), "aef", [segment("aef", ["a", "e", "f"])], id="shown"
        ),
        pytest.param(
            ["<|end|>"],
            Finish("end_of_sequence", 0),
            "",
            [segment("<|end|>", ["<|end|>"], True)],
            id="end of sequence alone",
        ),
        pytest.param([], Finish("no_token_left"), "", [], id="nothing"),
    ],
)
@pytest.mark.parametrize("skip", [True, False])
def test_an_answer_is_divided(
    tokens: list[str], finish: Finish | None, text: str, expected: list[Segment], skip: bool
) -> None:
    """Into what its text shows and what it hides; ids are kept."""
    if not skip and "<|user|>" in tokens:
        text, expected = "a<|user|>b", [segment("a<|user|>b", tokens)]
    stop = StopStrings(["ef", "dh"], TOKENIZER, hide=bool(finish and finish.hide), skip_special_tokens=skip)
    parts = Generator(ScriptedDecoder(TABLE), tokenizer=TOKENIZER, skip_special_tokens=skip, stop=stop).parts
    ids = TOKENIZER.convert_tokens_to_ids(tokens)
    turn = with_answer(Turn((), ()), ids, finish, Statistics(), parts)

    assert text == turn.text
    assert tuple(expected) == turn.answer
    assert ids == turn.ids
    assert (None if finish is None else finish.reason) == turn.finish_reason


@pytest.mark.parametrize("finish", [None, Finish("max_new_tokens")])
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_an_answer_that_ends_within_a_character_keeps_all_tokens(length: int, finish: Finish | None) -> None:
    """They are shown as one replacement character, and go into the next prompt."""
    alphabet = bytes_to_unicode()
    inner = Tokenizer(models.BPE({token: place for place, token in enumerate(alphabet.values())}, []))
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    ids = tokenizer.convert_tokens_to_ids([alphabet[byte] for byte in b"a" + "😀".encode()[:length]])
    parts = Generator(ScriptedDecoder(TABLE), tokenizer=tokenizer).parts
    turn = with_answer(Turn((), ()), ids, finish, Statistics(), parts)

    assert "a" + ("😀" if length == 4 else "\ufffd") == turn.text
    assert (Segment(turn.text, tuple(ids)),) == turn.answer
