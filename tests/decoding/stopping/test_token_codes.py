"""What a condition says of one token by its numbers alone."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import (
    EndOfSequence,
    History,
    MaxLength,
    MaxNewTokens,
    StopCondition,
    StopStrings,
    StopTokens,
    StopWhen,
)
from decodekit.decoding.engine.run import known_codes
from decodekit.decoding.scores import Scores
from decodekit.decoding.stopping.composition import by_token

ROWS = 3
NONE = Scores(lambda: torch.empty(0))


class Letters:
    """Ids are letters."""

    def decode(self, token_ids: list[int], **options: Any) -> str:
        return "".join(chr(ord("a") + i) for i in token_ids)

    def convert_ids_to_tokens(self, index: int) -> str:
        return chr(ord("a") + index)


def conditions() -> st.SearchStrategy[Any]:
    """Compositions of the conditions that can tell."""
    numbers = st.integers(1, 6) | st.lists(st.integers(1, 6), min_size=ROWS, max_size=ROWS)
    ids = st.lists(st.integers(0, 4), min_size=1, max_size=4)
    alone = st.one_of(
        numbers.map(MaxNewTokens), numbers.map(MaxLength), ids.map(StopTokens), ids.map(EndOfSequence)
    )
    return st.recursive(
        alone,
        lambda inner: st.tuples(inner, inner, st.booleans()).map(
            lambda x: x[0] | x[1] if x[2] else x[0] & x[1]
        ),
        max_leaves=5,
    )


@given(conditions(), st.data())
def test_says_what_a_call_says(condition: StopCondition, data: st.DataObject) -> None:
    """Of each row's newest token, whatever is composed."""
    rows = st.lists(st.integers(0, 4), min_size=ROWS, max_size=ROWS)
    tokens, prompt = data.draw(rows), [1 + n for n in data.draw(rows)]
    length = [p + 1 + n for p, n in zip(prompt, data.draw(rows), strict=True)]
    ids = torch.zeros(ROWS, 1, 12, dtype=torch.int64)
    for row in range(ROWS):
        ids[row, 0, length[row] - 1] = tokens[row]
    history = History(ids, torch.tensor(length)[:, None], torch.tensor(prompt), torch.arange(ROWS))
    code = by_token(condition)

    assert code is not None
    assert condition(NONE, history)[:, 0].tolist() == [
        code(tokens[row], length[row], prompt[row], row) for row in range(ROWS)
    ]


TEXT_STOPS = st.recursive(
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=2).map(
        lambda strings: StopStrings(strings, tokenizer=Letters())
    )
    | st.integers(1, 6).map(MaxNewTokens)
    | st.integers(0, 3).map(StopTokens),
    lambda inner: st.tuples(inner, inner, st.booleans()).map(lambda x: x[0] | x[1] if x[2] else x[0] & x[1]),
    max_leaves=4,
)


@given(TEXT_STOPS, st.lists(st.integers(0, 3), min_size=1, max_size=10), st.data())
def test_reads_text_token_by_token(condition: Any, tokens: list[int], data: st.DataObject) -> None:
    """As a call says of every token, also where tokens of a step are told again after an error."""
    again = data.draw(st.lists(st.integers(0, len(tokens)), min_size=len(tokens), max_size=len(tokens)))
    ids = torch.tensor([7, *tokens])[None, None]
    history = History(ids, torch.arange(2, len(tokens) + 2)[None], torch.tensor([1]), torch.tensor([0]))
    code = by_token(condition.begin())
    assert code is not None
    told: list[int] = []
    for i, token in enumerate(tokens):
        back = min(again[i], i)
        for j in range(i - back, i):
            assert told[j] == code(tokens[j], j + 2, 1, 0)
        told.append(code(token, i + 2, 1, 0))

    assert condition.begin()(NONE, history)[0].tolist() == told


def test_refuses_a_token_that_does_not_follow() -> None:
    """The second token of a row whose first was not told."""
    code = by_token(StopStrings("ab", tokenizer=Letters()))
    assert code is not None
    with pytest.raises(ValueError, match="'token' must follow those that were told: got token 1 at 3"):
        code(1, 3, 1, 0)


def test_who_looks_at_more_is_asked_as_ever() -> None:
    """One that calls a function, alone or among others; and a subclass that says otherwise."""

    class Never(StopTokens):
        def __call__(self, scores: Scores, history: History) -> torch.Tensor:
            return torch.zeros_like(history.length)

    function = StopWhen(lambda history: False)

    for condition in (function, MaxNewTokens(2) | function, function & MaxNewTokens(2), Never([1])):
        assert by_token(condition) is None


def test_codes_that_are_none() -> None:
    """Of another shape, or of finishes that are not there, are refused with the rule."""
    history = History(
        torch.zeros(2, 1, 3).long(), torch.ones(2, 1).long(), torch.ones(2).long(), torch.arange(2)
    )

    assert [[0], [2]] == known_codes(torch.tensor([[0], [2]]), history, 2).tolist()
    for codes in (torch.tensor([0, 2]), torch.tensor([[0], [3]]), torch.tensor([[0], [-1]]), 0):
        with pytest.raises(ValueError, match=r"'stop' must give codes 0 to 2, .* of the shape \[2, 1\]: got"):
            known_codes(codes, history, 2)  # type: ignore[arg-type]
