"""A function as a stop condition."""

from typing import Any

import numpy as np
import pytest
import torch

from decodekit.decoding import Finish, Generator, History, MaxNewTokens, StopTokens, StopWhen
from decodekit.decoding.scores import Scores
from decodekit.testing import ScriptedDecoder, last_token

COUNT_UP = torch.eye(10).roll(1, dims=1)
NONE = Scores(lambda: torch.empty(0))


def run(function: Any) -> list[list[int]]:
    """Two rows that count up, until *function* ends them."""
    decoder = ScriptedDecoder(COUNT_UP, 2, line=last_token)
    return Generator(decoder, stop=StopWhen(function) | MaxNewTokens(9))([[0], [5]]).ids


@pytest.mark.parametrize(
    "function",
    [
        lambda history: torch.tensor([history.before(row, 0)[-1] == 7 for row in range(2)]),
        lambda history: torch.tensor([[history.before(row, 0)[-1] == 7] for row in range(2)]),
        lambda history: np.array([int(history.before(row, 0)[-1]) == 7 for row in range(2)]),
        lambda history: [int(history.before(row, 0)[-1]) == 7 for row in range(2)],
    ],
    ids=["rows", "rows-and-one-column", "numpy", "list"],
)
def test_a_bool_for_each_row(function: Any) -> None:
    """Rows end one by one."""
    assert [[1, 2, 3, 4, 5, 6, 7], [6, 7]] == run(function)


@pytest.mark.parametrize("true", [True, np.True_, torch.tensor(True)])
def test_one_bool_for_all(true: Any) -> None:
    """All rows end with it."""
    result = run(lambda history: true if int(history.num_generated().max()) == 3 else False)

    assert [[1, 2, 3], [6, 7, 8]] == result


def test_is_shown_one_token_a_row_at_a_time() -> None:
    """In a window of three columns of two rows, three times."""
    shown: list[list[list[int]]] = []

    def note(history: History) -> bool:
        assert (2, 1) == tuple(history.length.shape)
        shown.append([history.before(row, 0).tolist() for row in range(2)])
        return False

    ids = torch.tensor([[[1, 2, 3, 4]], [[5, 6, 7, 8]]])
    window = History(ids, torch.tensor([[2, 3, 4], [1, 2, 3]]), torch.tensor([1, 0]), torch.tensor([0, 1]))
    StopWhen(note)(NONE, window)

    assert [[[1, 2], [5]], [[1, 2, 3], [5, 6]], [[1, 2, 3, 4], [5, 6, 7]]] == shown


@pytest.mark.parametrize(
    "said", [None, 1, 0.5, "yes", [True], torch.ones(3).bool(), torch.ones(1, 2).bool(), torch.ones(2)]
)
def test_anything_else_is_refused(said: Any) -> None:
    """Nothing is taken for an answer that is none."""
    with pytest.raises(TypeError, match="'function' must give a bool, or one for each of the 2 rows: got"):
        run(lambda history: said)


@pytest.mark.parametrize("function", [None, 3, dict, StopTokens(2)])
def test_must_be_a_function(function: Any) -> None:
    """A class or a condition is a mistake."""
    with pytest.raises(TypeError, match="'function' must"):
        StopWhen(function)


def test_the_reason_may_be_named() -> None:
    """It distinguishes two functions."""
    assert (Finish("stop_when"),) == StopWhen(bool_of_nothing).finishes
    assert (Finish("too_long"),) == StopWhen(bool_of_nothing, reason="too_long").finishes


def bool_of_nothing(history: History) -> bool:
    return False
