"""Rows end by the clock."""

import time

import pytest
import torch

from decodekit.decoding import Finish, Generator, History, MaxNewTokens, MaxTime
from decodekit.decoding.scores import Scores
from decodekit.testing import ScriptedDecoder, last_token

COUNT_UP = torch.eye(10).roll(1, dims=1)
PROMPT_SECONDS = 10.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


class Slow(ScriptedDecoder):
    """Takes a second for a token, and ten more for a wide forward."""

    now: list[float]

    def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
        self.now[0] += 1.0 if ids.shape[1] == 1 else PROMPT_SECONDS
        return super().forward(ids, cache_pos)


def slow(now: list[float], batch_size: int = 1) -> Slow:
    decoder = Slow(COUNT_UP, batch_size, line=last_token)
    decoder.now = now
    return decoder


def history(lengths: list[int]) -> History:
    """Rows of so many tokens, one of them prompt."""
    rows = len(lengths)
    return History(
        torch.zeros(rows, 1, 20, dtype=torch.int64),
        torch.tensor(lengths)[:, None],
        torch.ones(rows, dtype=torch.int64),
        torch.zeros(rows, dtype=torch.int64),
    )


NONE = Scores(lambda: torch.empty(0))


def test_starts_with_the_call(now: list[float]) -> None:
    """The clock starts with each call: the second call has all its time again."""
    generator = Generator(slow(now), stop=MaxTime(3.5) | MaxNewTokens(20))
    now[0] += 100
    for _ in range(2):
        result = generator([0])

        assert [[1, 2, 3, 4]] == result.ids
        assert [Finish("max_time")] == result.finishes


def test_starts_with_the_first_token(now: list[float]) -> None:
    """Reading a long prompt takes nothing of it; from the call it takes all."""
    prompt = list(range(5))
    generator = Generator(slow(now), stop=MaxTime(3.5, since="first_token") | MaxNewTokens(20))
    for _ in range(2):
        assert [[5, 6, 7, 8, 9]] == generator(prompt).ids

    assert [[5]] == Generator(slow(now), stop=MaxTime(3.5) | MaxNewTokens(20))(prompt).ids


def test_each_row_has_a_first_token(now: list[float]) -> None:
    """A row that begins later ends later."""
    stop = MaxTime(2.0, since="first_token").begin()
    assert [[0]] == stop(NONE, history([2])).tolist()
    now[0] += 1.5
    assert [[0], [0]] == stop(NONE, history([3, 2])).tolist()
    now[0] += 1.0
    assert [[1], [0]] == stop(NONE, history([4, 3])).tolist()
    assert [[0], [0]] == stop.begin()(NONE, history([4, 3])).tolist()


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_must_be_positive(seconds: float) -> None:
    """No time at all is refused."""
    with pytest.raises(ValueError, match="'seconds' must be > 0"):
        MaxTime(seconds)


@pytest.mark.parametrize("seconds", ["1", None, True])
def test_must_be_a_number(seconds: object) -> None:
    """Of seconds."""
    with pytest.raises(TypeError, match="'seconds' must be a number"):
        MaxTime(seconds)


def test_must_start_somewhere() -> None:
    """At the call or at the first token."""
    with pytest.raises(ValueError, match="'since' must be 'call' or 'first_token': got 'token'"):
        MaxTime(1, since="token")  # type: ignore[arg-type]
