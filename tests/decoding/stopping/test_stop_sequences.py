"""Stop sequences."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import Finish, Generator, History, MaxNewTokens, StopSequences
from decodekit.decoding.scores import Scores
from decodekit.testing import ScriptedDecoder, last_token

NONE = Scores(lambda: torch.empty(0))


def codes(stop: StopSequences, ids: list[int], lengths: list[int], prompt: int) -> list[int]:
    """The codes of one row at several lengths."""
    row = History(
        torch.tensor([[ids]]), torch.tensor([lengths]), torch.tensor([prompt]), torch.zeros(1).long()
    )
    return stop(NONE, row)[0].tolist()


def completes(sequences: list[list[int]], generated: list[int]) -> int:
    """The code, from the definition."""
    met = [one for one in sequences if generated[max(0, len(generated) - len(one)) :] == one]
    return sequences.index(max(met, key=len)) + 1 if met else 0


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=5),
    st.lists(st.integers(0, 2), min_size=2, max_size=24),
    st.data(),
)
def test_equals_the_definition(sequences: list[list[int]], ids: list[int], data: st.DataObject) -> None:
    """The longest sequence at the end of the generated tokens, at any lengths."""
    prompt = data.draw(st.integers(1, len(ids) - 1))
    lengths = data.draw(st.lists(st.integers(prompt, len(ids)), min_size=1, max_size=6))
    expected = [completes(sequences, ids[prompt:length]) for length in lengths]

    assert expected == codes(StopSequences(sequences), ids, lengths, prompt)


def test_the_first_to_be_complete_wins() -> None:
    """A longer one that would go on has no say."""
    table = torch.eye(10).roll(1, dims=1)
    result = Generator(
        ScriptedDecoder(table, line=last_token), stop=StopSequences([[2, 3, 4], [3], [9]]) | MaxNewTokens(9)
    )([0])

    assert [[1, 2, 3]] == result.ids
    assert [Finish("stop_sequence", (3,))] == result.finishes


def test_the_prompt_is_not_searched() -> None:
    """A sequence that begins in it does not count, nor does one that is all of it."""
    assert [0, 0, 0, 1] == codes(StopSequences([4, 5]), [4, 5, 4, 5, 4, 5], [2, 3, 4, 6], prompt=3)


def test_a_row_of_ids_is_one_sequence() -> None:
    """Flat or nested, of numpy or torch."""
    for given_ids in ([4, 5], [[4, 5]], np.array([4, 5]), torch.tensor([[4, 5]]), ((4, 5),)):
        assert (Finish("stop_sequence", (4, 5)),) == StopSequences(given_ids).finishes
    assert ((4,), (5, 6)) == StopSequences([[4], [5, 6]]).sequences


def test_hide_reaches_the_finish() -> None:
    """One for each sequence."""
    hidden = StopSequences([[1], [2, 3]], hide=True).finishes

    assert (Finish("stop_sequence", (1,), hide=True), Finish("stop_sequence", (2, 3), hide=True)) == hidden


@pytest.mark.parametrize(
    ("sequences", "error"),
    [
        ([], TypeError),
        ([[]], TypeError),
        (None, TypeError),
        (5, TypeError),
        ("ab", TypeError),
        (["ab"], TypeError),
        ([[1.5]], TypeError),
        ([[True]], TypeError),
        ([[1], 2, [None]], TypeError),
        ([1, -1], ValueError),
    ],
)
def test_must_be_sequences_of_ids(sequences: Any, error: type[Exception]) -> None:
    """An empty one would end every row at once: refused, as is what is no id."""
    with pytest.raises(error, match="'sequences' must be"):
        StopSequences(sequences)


def test_hide_is_true_or_false() -> None:
    """A string that reads as false is true: refused."""
    with pytest.raises(TypeError, match=r"'hide' must be .*bool"):
        StopSequences([1], hide="no")  # type: ignore[arg-type]
