"""Repetition loops."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import Finish, Generator, History, MaxNewTokens, RepetitionLoop
from decodekit.decoding.scores import Scores
from decodekit.testing import ScriptedDecoder, last_token

NONE = Scores(lambda: torch.empty(0))


def codes(stop: RepetitionLoop, ids: list[int], prompt: int) -> list[int]:
    """The codes after each generated token."""
    length = torch.arange(prompt + 1, len(ids) + 1)[None]
    return stop(NONE, History(torch.tensor([[ids]]), length, torch.tensor([prompt]), length[:, 0]))[
        0
    ].tolist()


def loops(generated: list[int], shortest: int, longest: int, repeats: int) -> bool:
    """Whether the tokens end in so many copies of a pattern, from the definition."""
    return any(
        len(generated) >= period * repeats and generated[-period * repeats :] == generated[-period:] * repeats
        for period in range(shortest, longest + 1)
    )


@given(
    st.lists(st.integers(0, 1), min_size=2, max_size=24),
    st.integers(1, 6),
    st.integers(2, 4),
    st.data(),
)
def test_equals_the_definition(ids: list[int], longest: int, repeats: int, data: st.DataObject) -> None:
    """At every token, with few distinct tokens so that they repeat."""
    shortest = data.draw(st.integers(1, longest))
    prompt = data.draw(st.integers(1, len(ids) - 1))
    expected = [
        int(loops(ids[prompt:length], shortest, longest, repeats))
        for length in range(prompt + 1, len(ids) + 1)
    ]

    assert expected == codes(RepetitionLoop(longest, repeats, shortest), ids, prompt)


def test_ends_a_row_in_the_loop() -> None:
    """Three times round a circle of three; the row that has a longer one goes on."""
    table = torch.eye(10)[[1, 2, 0, 4, 5, 6, 7, 8, 9, 3]]
    generator = Generator(
        ScriptedDecoder(table, 2, line=last_token), stop=RepetitionLoop(6) | MaxNewTokens(40)
    )
    result = generator([[0], [3]])

    assert [1, 2, 0, 1, 2, 0, 1, 2, 0] == result.ids[0]
    assert [Finish("repetition_loop"), Finish("max_new_tokens")] == result.finishes


def test_the_shortest_pattern_counts() -> None:
    """One token over and over is a pattern of two tokens only when there are enough for that."""
    assert [0, 0, 1, 1, 1, 1] == codes(RepetitionLoop(2, repeats=3), [9, 5, 5, 5, 5, 5, 5], 1)
    # The longer pattern begins as if there were another copy, and there is none.
    assert [0, 0, 1, 1] == codes(RepetitionLoop(2, repeats=2), [9, 0, 1, 1, 1], 1)
    assert [0, 0, 0, 0, 0, 1] == codes(RepetitionLoop(2, 3, min_period=2), [9, 5, 5, 5, 5, 5, 5], 1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_period": 0}, ValueError, "'max_period' must be >= 1"),
        ({"max_period": 3, "repeats": 1}, ValueError, "'repeats' must be >= 2"),
        ({"max_period": 3, "min_period": 0}, ValueError, "'min_period' must be >= 1"),
        ({"max_period": 3, "min_period": 4}, ValueError, "'min_period' must be <= max_period, 3: got 4"),
        ({"max_period": 2.0}, TypeError, "'max_period' must be a whole number"),
        ({"max_period": 2, "repeats": 2**62}, ValueError, "'repeats' must be <= 1048576"),
        ({"max_period": 3, "repeats": True}, TypeError, "'repeats' must be a whole number"),
    ],
)
def test_parameters_are_checked(options: dict[str, Any], error: type[Exception], message: str) -> None:
    """One copy is no repetition, and nothing is no pattern."""
    with pytest.raises(error, match=message):
        RepetitionLoop(**options)
