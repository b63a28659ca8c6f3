"""Stretches of tokens."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from decodekit.decoding import Consecutive, Finish, Generator, HighEntropy, History, MaxNewTokens, StopTokens
from decodekit.decoding.scores import Scores
from decodekit.testing import ScriptedDecoder, last_token

NATS = 1.0
FLAT, SHARP = torch.zeros(4), torch.tensor([9.0, 0.0, 0.0, 0.0])


def uncertain(ids: list[int]) -> bool:
    """What the newest token was chosen from is a function of the tokens, of all of them."""
    return sum(i * token for i, token in enumerate(ids[:-1], start=1)) % 3 > 0


def ask(stop: Any, ids: list[int], lengths: list[int], prompt: int, garbage: int = 0) -> list[int]:
    """The codes at several lengths of one row; the last is shown *garbage* times more, with other scores."""
    scores = [FLAT if uncertain(ids[:length]) else SHARP for length in lengths]
    scores += [SHARP if scores[-1] is FLAT else FLAT] * garbage
    length = torch.tensor([lengths + lengths[-1:] * garbage])
    row = History(torch.tensor([[ids + [0] * (30 - len(ids))]]), length, torch.tensor([prompt]), length[:, 0])
    codes: list[int] = stop(Scores(lambda: torch.stack(scores)[None]), row)[0].tolist()
    return codes[: len(lengths)]


@given(
    texts=st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=14), min_size=1, max_size=4),
    n=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    keep=st.lists(st.integers(0, 14), min_size=4, max_size=4),
    garbage=st.integers(0, 2),
)
def test_equals_the_definition(
    texts: list[list[int]], n: int, sizes: list[int], keep: list[int], garbage: int
) -> None:
    """In windows of any width, padded ones too, and after rewinds to where a text parts from the last."""
    stop, prompt, last = Consecutive(n, HighEntropy(NATS)).begin(), 1, [0]
    for text, kept in zip(texts, keep, strict=False):
        # The beginning of the last text, and this one.
        ids = last[: max(prompt, kept)] + text
        length, step = len(ids) - len(text), 0
        while length < len(ids):
            window = list(range(length + 1, min(len(ids), length + sizes[step % len(sizes)]) + 1))
            expected = [
                int(end - n >= prompt and all(uncertain(ids[:at]) for at in range(end - n + 1, end + 1)))
                for end in window
            ]

            assert expected == ask(stop, ids, window, prompt, garbage)

            length, step = window[-1], step + 1
        last = ids


def test_what_was_not_shown_does_not_count() -> None:
    """A text that is met in its middle, or whose earlier tokens are others, begins at nothing."""
    stop = Consecutive(2, StopTokens(5))

    assert [0] == ask(stop, [9, 5, 5], [3], 1)
    assert [1] == ask(stop, [9, 5, 5, 5], [4], 1)
    assert [0] == ask(stop, [9, 4, 5, 5, 5], [5], 1)


def test_the_prompt_does_not_count() -> None:
    """Not even where its last token is shown, as that of a row without a token of its own is."""
    assert [0, 0, 1] == ask(Consecutive(2, StopTokens(5)), [5, 5, 5, 5], [2, 3, 4], prompt=2)


def test_ends_with_the_newest_finish() -> None:
    """Different finishes of one condition make a stretch."""
    decoder = ScriptedDecoder(torch.eye(9).roll(1, dims=1), line=last_token)
    result = Generator(decoder, stop=Consecutive(3, StopTokens([2, 4, 5, 6])) | MaxNewTokens(9))([0])

    assert [[1, 2, 3, 4, 5, 6]] == result.ids
    assert [Finish("stop_token", 6)] == result.finishes


@pytest.mark.parametrize(
    ("n", "condition", "error"),
    [
        (0, StopTokens(2), ValueError),
        (2**64, StopTokens(2), ValueError),
        (True, StopTokens(2), TypeError),
        (2, len, TypeError),
    ],
)
def test_parameters_are_checked(n: Any, condition: Any, error: type[Exception]) -> None:
    """A number of tokens and a condition."""
    with pytest.raises(error):
        Consecutive(n, condition)
