"""Conditions that wait."""

import time
from typing import Any

import pytest
import torch

from decodekit.decoding import (
    EndOfSequence,
    Finish,
    Generator,
    MaxNewTokens,
    MaxTime,
    NotBefore,
    StopSequences,
    StopStrings,
)
from decodekit.testing import ScriptedDecoder, last_token

from .test_stop_strings import Pieces

COUNT_UP = torch.eye(4).roll(1, dims=1)


def run(stop: Any, tokenizer: Any = None) -> Any:
    """Rows that count up and begin anew."""
    decoder = ScriptedDecoder(torch.eye(8)[[1, 2, 3, 0]], 2, line=last_token)
    return Generator(decoder, stop=stop | MaxNewTokens(20), tokenizer=tokenizer)([[0], [1]])


def test_ends_no_row_before_its_time() -> None:
    """An earlier match is ordinary text; the finish is the condition's own."""
    assert [[1, 2], [2]] == run(EndOfSequence(2)).ids
    assert [[1, 2], [2, 3, 0, 1, 2]] == run(NotBefore(2, EndOfSequence(2))).ids
    assert [Finish("end_of_sequence", 2)] * 2 == run(NotBefore(2, EndOfSequence(2))).finishes


def test_the_nth_token_may_be_the_last() -> None:
    """It counts."""
    assert [6, 5] == [len(ids) for ids in run(NotBefore([3, 5], EndOfSequence(2))).ids]
    assert [2, 1] == [len(ids) for ids in run(NotBefore(1, EndOfSequence(2))).ids]


def test_holds_for_all_of_a_composition() -> None:
    """And not for what is beside it."""
    stop = NotBefore(5, EndOfSequence(2) | StopSequences([3, 0])) | MaxNewTokens([9, 3])
    result = run(stop)

    assert [[1, 2, 3, 0, 1, 2], [2, 3, 0]] == result.ids
    assert [Finish("end_of_sequence", 2), Finish("max_new_tokens")] == result.finishes


def test_what_is_met_early_shows() -> None:
    """Text that was held back as the beginning of a hidden match comes out."""
    # Pieces: a, b, ab, ba.
    for condition in (StopSequences([1, 2], hide=True), StopStrings("bab", Pieces())):
        result = run(NotBefore(4, condition), Pieces())

        assert [[1, 2, 3, 0, 1, 2], [2, 3, 0, 1, 2]] == result.ids
        assert ["babbaa", "abbaa"] == result.text


def test_the_condition_is_made_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock inside starts with the call."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stop = NotBefore(2, MaxTime(5))
    now[0] = 100.0

    assert [Finish("max_new_tokens")] * 2 == run(stop).finishes


@pytest.mark.parametrize(
    ("n", "condition", "error"),
    [(0, EndOfSequence(2), ValueError), (1.5, EndOfSequence(2), TypeError), (2, len, TypeError)],
)
def test_parameters_are_checked(n: Any, condition: Any, error: type[Exception]) -> None:
    """A number of tokens and a condition."""
    with pytest.raises(error):
        NotBefore(n, condition)


def test_a_number_for_each_row_is_checked_before_the_first_token() -> None:
    """Wherever the condition is."""
    decoder = ScriptedDecoder(torch.eye(8), 3)
    generator = Generator(decoder, stop=MaxNewTokens(2) | NotBefore([3, 5], EndOfSequence(2)))
    with pytest.raises(ValueError, match="'n' must be one number or one for each of the 3 rows: got 2"):
        generator.stream([[0], [1], [2]])
